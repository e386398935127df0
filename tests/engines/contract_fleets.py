"""What may Heddle expect of several engines, whichever kind they are?

Claims without an engine: a tier imports them and brings `wide` (an engine of two ranks), `pair`
(two of one rank that share a storage if their kind has one), and says in `shares` which it is.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import httpx
from contract_calls import Engine, ask, prompt, until

from heddle.collector.prometheus import series

PAGE = 16
CONTEXT = 40 * PAGE
"""SGLang looks into a storage for 256 new tokens and more."""


@contextmanager
def awake(url: str) -> Generator[None]:
    """Ask its scheduler something again and again, as a fleet's load does.

    With --sleep-on-idle a genuine one that only waits for a storage sleeps until the next message:
    33 s were seen.
    """
    over = threading.Event()

    def poke() -> None:
        with httpx.Client(base_url=url, timeout=60.0) as http:
            while not over.wait(0.2):
                http.get("/server_info")

    thread = threading.Thread(target=poke)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def stored(http: httpx.Client) -> float:
    """Tokens that have gone out to the storage."""
    http.get("/server_info")
    lines = series(http.get("/metrics").text)
    return sum(line.value for line in lines if line.name == "backuped_tokens_total")


def cached(engine: Engine, context: list[int]) -> int:
    with httpx.Client(base_url=engine.url, timeout=120.0) as http, awake(engine.url):
        return ask(http, context, 1)["meta_info"]["cached_tokens"]


def write(engine: Engine, context: list[int], *, shares: bool) -> None:
    """Prefill it there, and wait until its pages can be read elsewhere."""
    with httpx.Client(base_url=engine.url, timeout=120.0) as http:
        before = stored(http)
        with awake(engine.url):
            assert ask(http, context, 1)["meta_info"]["cached_tokens"] == 0
        if shares:
            until(lambda: stored(http) >= before + CONTEXT)


def test_a_neighbour_finds_a_context_in_the_storage_or_prefills_it(
    pair: tuple[Engine, Engine], shares: bool
) -> None:
    context = prompt(90, CONTEXT + 10)
    write(pair[0], context, shares=shares)
    assert cached(pair[1], context) == (CONTEXT if shares else 0)


def test_no_context_is_found_across_degrees(
    pair: tuple[Engine, Engine], wide: Engine, shares: bool
) -> None:
    """Page keys end in rank and degree: a move to another degree prefills."""
    context = prompt(91, CONTEXT + 10)
    write(pair[0], context, shares=shares)
    assert cached(wide, context) == 0


def test_an_engine_of_two_ranks_serves_as_one(wide: Engine) -> None:
    context = prompt(92, 10 * PAGE + 5)
    with httpx.Client(base_url=wide.url, timeout=120.0) as http:
        first = ask(http, context, 12)
        assert len(first["output_ids"]) == 12
        again = ask(http, [*context, *first["output_ids"], *prompt(93, 20)], 3)["meta_info"]
        assert 10 * PAGE <= again["cached_tokens"] <= len(context) + 11
        assert http.get("/server_info").json()["tp_size"] == 2
        (load,) = http.get("/v1/loads").json()["loads"]
        assert load["num_running_reqs"] == 0
