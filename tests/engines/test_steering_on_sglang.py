"""Do orders, switches, preemption and moves come through on two genuine SGLang engines?

w0 has two slots, Heddle's plugin and preemption beyond a margin; w1 is its neighbour without the
plugin. Both keep their pages in one storage.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import polars as pl
import pytest
from contract_calls import MARGIN, SLOTS, Engine, prompt, until
from contract_fleets import stored
from heddle_stack import Stack, stack_of
from span_sink import SpanSink

# The first test of an engine waits for it to start.
pytestmark = pytest.mark.timeout(600)

TRAJECTORIES, OUTPUT, LONG = 64, 6, 400
OTHER = {"w0": "w1", "w1": "w0"}
PASS_S, TURN = 0.1, 4
"""A pass of the slowed engine, and tokens of each step that waits: it sees who arrives up to a pass
late, so two that leave its queue one after the other must be more than a pass apart."""


@pytest.fixture(scope="module")
def stack(
    plugged_tp1: tuple[Engine, str], neighbour: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    urls = [plugged_tp1[0].url, neighbour.url]
    with stack_of(urls, tmp_path_factory.mktemp("two")) as made:
        yield made


@contextmanager
def alone(stack: Stack, name: str) -> Generator[None]:
    """Only that worker takes steps for as long as the block lasts."""
    away = [w for w in stack.get("/workers") if w["worker_id"] != name]
    auth = {"Authorization": f"Bearer {stack.token}"}
    for worker in away:
        url = f"{stack.controller}/heddle/v1/workers/{worker['worker_id']}"
        assert httpx.delete(url, headers=auth, timeout=60).status_code == 200
    try:
        yield
    finally:
        for worker in away:
            stack.post("/workers", url=worker["url"], degree=1)


def step(
    stack: Stack, run: str, trajectory: str, ids: list[int], tokens: int, **more: Any
) -> dict[str, Any]:
    headers = {"X-Heddle-Run": run, "X-Heddle-Trajectory-Id": trajectory}
    names = {"group": "X-Heddle-Group-Id", "final": "X-Heddle-Final"}
    headers |= {name: more.pop(k) for k, name in names.items() if k in more}
    sampling = {"max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": ids, "sampling_params": sampling, **more}
    url = f"{stack.controller}/generate"
    reply = httpx.post(url, json=body, headers=headers, timeout=300.0)
    assert reply.status_code == 200, reply.text
    told = {"worker": "X-Heddle-Worker", "traceparent": "traceparent"}
    return {**reply.json(), **{name: reply.headers[header] for name, header in told.items()}}


@pytest.mark.parametrize("preset", ["verl", "heddle"])
def test_a_rollout_of_64_with_tool_waits_completes(stack: Stack, preset: str) -> None:
    run = f"whole-{preset}"
    stack.post("/switches", run=run, preset=preset, who="test")
    stack.post("/rollouts", run=run, rollout="o", expected=TRAJECTORIES)

    def one(number: int) -> None:
        ids = prompt(100 + number, 24)
        for index in range(2):
            last = {"final": "true"} if index else {}
            group = f"g{number // 8}"
            answer = step(stack, run, f"t{number}", ids, OUTPUT, group=group, **last)
            ids = [*ids, *answer["output_ids"], *prompt(number, 6)]
            time.sleep(0.1 * (not index))

    with ThreadPoolExecutor(TRAJECTORIES) as pool:
        list(pool.map(one, range(TRAJECTORIES)))
    stack.post("/rollouts/o/end", run=run)
    steps = stack.rows("steps", lambda f: f.height == 2 * TRAJECTORIES, run=run)
    assert steps["error_type"].null_count() == steps.height
    assert steps.select("trajectory_id", "step_index").is_unique().all()
    assert steps["output_tokens"].to_list() == [OUTPUT] * steps.height
    tools = stack.rows("tool_calls", lambda f: f.height == TRAJECTORIES, run=run)
    assert tools["inferred"].all()


def ended(stack: Stack, trajectory: str, step: Future[Any]) -> None:
    """Stop a running step by its trajectory's name, as a client would."""
    url = f"{stack.controller}/abort_request"
    assert httpx.post(url, json={"trajectory_id": trajectory}, timeout=60).status_code == 200
    assert step.result()["meta_info"]["finish_reason"]["type"] == "abort"


def load(http: httpx.Client, engine: Engine) -> dict[str, Any]:
    (rank,) = http.get(f"{engine.url}/v1/loads").json()["loads"]
    return rank


def released(
    stack: Stack, plugged: tuple[Engine, str], run: str, order: str, later: str = ""
) -> list[str]:
    """Three short ones and, last, one whose group is known to be long wait behind full slots;
    names in the order in which they left the queue for the one slot that comes free."""
    engine, changes = plugged
    stack.post("/switches", run=run, preset="verl", prediction="group-history", who="test")
    stack.post("/switches", run=run, order=order, who="test")
    for group, tokens in (("long", LONG), ("short", 4)):
        step(stack, run, f"{group}-known", prompt(7, 16), tokens, group=group, final="true")
    names = ["short-a", "short-b", "short-c", "long-d"]
    with ThreadPoolExecutor(len(names) + SLOTS) as pool, httpx.Client(timeout=60) as http:

        def ask(number: int, name: str, tokens: int) -> Future[Any]:
            ids, group = prompt(200 + number, 16), name.partition("-")[0]
            return pool.submit(step, stack, run, name, ids, tokens, group=group, final="true")

        full = [ask(50 + i, f"full-{i}", 3000) for i in range(SLOTS)]
        until(lambda: load(http, engine)["num_running_reqs"] == SLOTS)
        http.post(f"{engine.url}/slow_down", json={"forward_sleep_time": PASS_S})
        asked: list[Future[Any]] = []
        for number, name in enumerate(names):
            asked.append(ask(number, name, TURN))
            until(lambda: load(http, engine)["num_waiting_reqs"] == len(asked))
        if later:
            stack.post("/switches", run=run, order=later, who="test", why="they wait already")
            until(lambda: http.get(changes).json()["applied"])
        ended(stack, "full-0", full[0])
        [f.result() for f in asked]
        http.post(f"{engine.url}/slow_down", json={"forward_sleep_time": None})
        ended(stack, "full-1", full[1])
    steps = stack.rows("steps", lambda f: f.height == 2 + len(names) + SLOTS, run=run)
    mine = steps.filter(pl.col("trajectory_id").is_in(names))
    left = pl.col("start_ns") + pl.col("held_ns") + pl.col("queue_ns")
    return mine.sort(left)["trajectory_id"].to_list()


@pytest.mark.parametrize(
    ("order", "later", "place"),
    [("fcfs", "", 3), ("longest-first", "", 0), ("fcfs", "longest-first", 0)],
    ids=["fcfs", "longest-first", "switched-while-they-wait"],
)
def test_a_planted_long_one_is_released_where_the_order_says(
    stack: Stack, plugged_tp1: tuple[Engine, str], order: str, later: str, place: int
) -> None:
    with alone(stack, "w0"):
        names = released(stack, plugged_tp1, f"order-{order}-{later}", order, later)
    shorts = ["short-a", "short-b", "short-c"]
    assert names == [*shorts[:place], "long-d", *shorts[place:]]


def test_a_preemption_shows_on_the_step_it_took_the_place_of(
    stack: Stack, plugged_tp1: tuple[Engine, str]
) -> None:
    run, tokens = "preempted", 800
    stack.post("/switches", run=run, preset="verl", who="test")
    with alone(stack, "w0"), ThreadPoolExecutor(SLOTS) as pool, httpx.Client(timeout=60) as http:
        before = stack.get("/workers")[0]["preemptions"]
        full = [
            pool.submit(step, stack, run, f"f{i}", prompt(i, 16), tokens, final="true")
            for i in range(SLOTS)
        ]
        until(lambda: load(http, plugged_tp1[0])["num_running_reqs"] == SLOTS)
        more = {"priority": 2 * MARGIN, "final": "true"}
        urgent = step(stack, run, "urgent", prompt(9, 16), 2, **more)
        metas = [f.result()["meta_info"] for f in full]
        until(lambda: stack.get("/workers")[0]["preemptions"] == before + 1)
    assert urgent["meta_info"]["num_retractions"] == 0
    assert sorted(meta["num_retractions"] for meta in metas) == [0, 1]
    assert [meta["completion_tokens"] for meta in metas] == [tokens] * SLOTS
    steps = stack.rows("steps", lambda f: f.height == SLOTS + 1, run=run)
    told = dict(steps.select("trajectory_id", "retractions").iter_rows())
    assert told == {
        "urgent": 0, **{f"f{i}": meta["num_retractions"] for i, meta in enumerate(metas)}
    }  # fmt: skip


def carried(stack: Stack, run: str, trajectory: str, source: str) -> tuple[str, Any]:
    """Moved away from there while its tool runs; the target and the move as it was made."""
    target = OTHER[source]
    stack.post("/moves", run=run, trajectory=trajectory, target=target, who="test")
    until(lambda: stack.get("/moves")["moves"][0]["state"] != "moving")
    return target, stack.get("/moves")["moves"][0]


@pytest.mark.parametrize("worker", ["w0", "w1"])
def test_an_engines_own_spans_hang_below_the_step(
    stack: Stack, spans: SpanSink, worker: str
) -> None:
    with alone(stack, worker):
        answer = step(stack, "traced", f"on-{worker}", prompt(310, 40), 4, final="true")
    _, trace, parent, _ = answer["traceparent"].split("-")
    (root,) = [span for span in spans.of(trace, "Req") if span.name.strip().startswith("Req")]
    assert answer["worker"] == worker
    assert root.parent_span_id.hex() == parent
    found = stack.rows("steps", lambda f: f.height > 0, run="traced", trajectory=f"on-{worker}")
    assert found["span_id"].to_list() == [parent]


def kept(stack: Stack) -> float:
    """Tokens that have gone out to the storage, from both engines: written behind the pass."""
    total = 0.0
    for worker in stack.get("/workers"):
        with httpx.Client(base_url=worker["url"], timeout=60.0) as http:
            total += stored(http)
    return total


def test_a_move_over_generate_arrives_with_a_cache_hit(stack: Stack) -> None:
    run, ids = "moved-generate", prompt(301, 480)
    before = kept(stack)
    first = step(stack, run, "t", ids, 8)
    until(lambda: kept(stack) >= before + 480)
    target, move = carried(stack, run, "t", first["worker"])
    more = [*ids, *first["output_ids"], *prompt(302, 20)]
    second = step(stack, run, "t", more, 4, final="true")
    assert (second["worker"], move["error"]) == (target, None)
    assert second["meta_info"]["cached_tokens"] >= 0.8 * 488
    # Equal degrees and one storage: the target fetched, it did not prefill again.
    assert move["method"] == "l3_fetch"
    assert stack.get("/moves")["moves"][0]["useless"] is False
    spans = stack.rows("moves", lambda f: f.height == 1, run=run).row(0, named=True)
    assert spans["move_hit_tokens"] == second["meta_info"]["cached_tokens"]
    assert spans["hidden_s"] > 0


def test_a_move_over_chat_with_tool_messages_arrives_with_a_cache_hit(stack: Stack) -> None:
    run, url = "moved-chat", f"{stack.controller}/v1/chat/completions"
    stack.post("/switches", run=run, migration="rank", who="test")
    headers = {"X-Heddle-Run": run, "X-Heddle-Trajectory-Id": "chat"}
    messages: list[Any] = [{"role": "user", "content": "trajectory step reward " * 20}]

    def ask() -> httpx.Response:
        body = {"model": "any", "messages": messages, "max_tokens": 8, "ignore_eos": True}
        reply = httpx.post(url, json=body, headers=headers, timeout=120.0)
        assert reply.status_code == 200, reply.text
        return reply

    first = ask()
    target, move = carried(stack, run, "chat", first.headers["X-Heddle-Worker"])
    messages.append({"role": "assistant", **first.json()["choices"][0]["message"]})
    messages.append({"role": "tool", "tool_call_id": "c", "content": "the lazy dog"})
    headers["X-Heddle-Final"] = "true"
    second = ask()
    assert (second.headers["X-Heddle-Worker"], move["error"]) == (target, None)
    span = stack.rows("moves", lambda f: f.height == 1, run=run).row(0, named=True)
    assert span["move_hit_tokens"] >= 0.5 * span["move_tokens"] > 30


def test_a_move_in_mid_generation_goes_on_from_what_was_written(
    stack: Stack, plugged_tp1: tuple[Engine, str], neighbour: Engine
) -> None:
    run = "moved-running"
    stack.post("/switches", run=run, preset="verl", who="test")
    with ThreadPoolExecutor(1) as pool, httpx.Client(timeout=60) as http:
        ids = prompt(303, 24)
        running = pool.submit(step, stack, run, "mid", ids, 1200, final="true")
        engines = {"w0": plugged_tp1[0], "w1": neighbour}
        source = until(
            lambda: next((w for w, e in engines.items() if load(http, e)["num_running_reqs"]), "")
        )
        said = {"run": run, "trajectory": "mid", "target": OTHER[source], "mid_generation": True}
        assert stack.post("/moves", **said)["method"] == "resume"
        answer = running.result()
    assert answer["worker"] == OTHER[source]
    assert len(answer["output_ids"]) == answer["meta_info"]["completion_tokens"] == 1200
    assert answer["meta_info"]["prompt_tokens"] == 24
