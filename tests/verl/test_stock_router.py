"""Where Heddle stands in for SGLang's router, do both answer alike? The genuine wheel, 0.3.2."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from controller_processes import Processes, answers, free_port, until

pytestmark = pytest.mark.timeout(300)
PYTHON = Path(__file__).parents[2] / ".venv-verl" / "bin" / "python"
KEYS, TURNS = ("a", "b", "c"), 3


@pytest.fixture(scope="module")
def both(engines, tmp_path_factory):
    """The router and a controller before the same engines; what each said to the same calls."""
    with ExitStack() as exits:
        built = Processes(tmp_path_factory.mktemp("stock"), exits)
        stock = f"http://127.0.0.1:{(port := free_port())}"
        words = ["-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--policy", "manual"]
        words += ["--port", str(port), "--prometheus-port", str(free_port())]
        log = exits.enter_context((built.data / "router.log").open("wb"))
        process = subprocess.Popen([PYTHON, *words], stdout=log, stderr=subprocess.STDOUT)
        exits.callback(process.wait)
        exits.callback(process.terminate)
        built.controller("--open-registration")
        until(lambda: answers(f"{stock}/health"))
        yield [Told(where, engines) for where in (stock, built.at("controller"))]


class Told:
    """Everything that one address answers, called as slime and its engines call it."""

    def __init__(self, url: str, engines: list[str]) -> None:
        with httpx.Client(base_url=url, timeout=60.0) as http:
            self.http = http
            self.empty = {
                path: http.get(path)
                for path in ("/workers", "/health", "/liveness", "/readiness", "/get_loads")
            }
            self.nobody = self.generate([1, 2])
            self.joined = [http.post("/workers", json=engine(at)) for at in engines]
            until(lambda: http.get("/readiness").json().get("healthy_workers") == len(engines))
            self.listed = http.get("/workers").json()
            ids = [worker["id"] for worker in self.listed["workers"]]
            self.one = http.get(f"/workers/{ids[0]}")
            self.full = {p: http.get(p) for p in ("/readiness", "/get_loads", "/get_model_info")}
            self.metrics = http.get("/engine_metrics").text
            self.turns = {key: list(self.sample(key)) for key in KEYS}
            self.streamed = self.generate([5, 6, 7], stream=True)
            self.chats = [self.chat(stream=stream) for stream in (False, True)]
            self.aborted = http.post("/abort_request", json={"rid": "nobody"})
            # Not the one that leaves: the router adds in the background, and may do so after that.
            self.again = http.post("/workers", json=engine(engines[1]))
            leaves = next(w["id"] for w in self.listed["workers"] if w["url"] == engines[0])
            self.gone = http.delete(f"/workers/{leaves}")
            until(lambda: http.get("/workers").json()["total"] == 1)
            self.left = http.get("/workers").json()

    def generate(self, ids: list[int], key: str = "", **more: Any) -> httpx.Response:
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 8}, **more}
        headers = {"X-SMG-Routing-Key": key} if key else {}
        return self.http.post("/generate", json=body, headers=headers)

    def sample(self, key: str):
        """Turns that each go on with what was answered."""
        ids = [1000 * (1 + KEYS.index(key)) + n for n in range(200)]
        for turn in range(TURNS):
            answer = self.generate(ids, key, rid=f"{key}-{turn}")
            ids += answer.json()["output_ids"]
            yield answer

    def chat(self, *, stream: bool) -> httpx.Response:
        messages = [{"role": "user", "content": "hi"}]
        said = {"model": "m", "messages": messages, "max_tokens": 4, "stream": stream}
        return self.http.post("/v1/chat/completions", json=said)


def engine(url: str) -> dict[str, Any]:
    """As an engine of slime's registers itself."""
    return {"url": url, "worker_type": "regular"}


def shape(value: Any) -> Any:
    """Names and kinds, without the values."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in sorted(value.items())}
    return [shape(each) for each in value[:1]] if isinstance(value, list) else type(value).__name__


def events(reply: httpx.Response) -> list[str]:
    return [line for line in reply.text.splitlines() if line.startswith("data:")]


def test_both_are_up_and_have_no_engine_alike(both):
    stock, heddle = both
    for path, said in stock.empty.items():
        assert (path, heddle.empty[path].status_code) == (path, said.status_code)
    for path in ("/workers", "/get_loads"):
        assert heddle.empty[path].json() == stock.empty[path].json()
    assert heddle.empty["/health"].text == stock.empty["/health"].text
    assert stock.empty["/readiness"].json()["status"] == "not ready"
    assert heddle.empty["/readiness"].json()["status"] == "not ready"
    assert (heddle.nobody.status_code, stock.nobody.status_code) == (503, 503)


def test_engines_join_alike_and_are_listed_with_the_same_fields(both):
    stock, heddle = both
    joined = [[*told.joined, told.again] for told in both]
    for theirs, ours in zip(*joined, strict=True):
        assert ours.status_code == theirs.status_code == 202
        assert shape(ours.json()) == shape(theirs.json())
        assert ours.json()["url"] == theirs.json()["url"]
    assert heddle.again.json()["worker_id"] == heddle.joined[1].json()["worker_id"]
    assert heddle.listed["stats"] == stock.listed["stats"]
    known = [sorted(told.listed["workers"], key=lambda w: w["url"]) for told in both]
    for theirs, ours in zip(*known, strict=True):
        assert ours.keys() == theirs.keys()
        # SGLang's router tells a model's path too; ids are each one's own.
        assert ours.pop("metadata").items() <= theirs.pop("metadata").items()
        assert {**ours, "id": ""} == {**theirs, "id": ""}
    for told in both:
        # The router also tells of the job that added it.
        assert told.listed["workers"][0].items() <= told.one.json().items()


def test_readiness_loads_and_the_model_are_told_with_the_same_fields(both):
    stock, heddle = both
    assert heddle.full["/readiness"].json() == stock.full["/readiness"].json()
    assert heddle.full["/get_model_info"].json() == stock.full["/get_model_info"].json()
    loads = [told.full["/get_loads"].json()["workers"] for told in both]
    assert shape(loads[1]) == shape(loads[0])
    assert {load["worker"] for load in loads[1]} == {load["worker"] for load in loads[0]}


def test_the_engines_metrics_come_with_their_addresses_from_both(both):
    stock, heddle = (
        {series(line) for line in told.metrics.splitlines() if line and line[0] != "#"}
        for told in both
    )
    assert stock
    assert stock <= heddle


def series(line: str) -> tuple[str, frozenset[str]]:
    """Name and labels of a sample; the router writes an engine's names with an underscore."""
    name, _, labels = line.partition("{")
    return name.replace("sglang:", "sglang_"), frozenset(labels.split("}")[0].split(","))


def test_a_sample_is_answered_alike_and_stays_where_its_prefix_is(both):
    stock, heddle = both
    for key in KEYS:
        for theirs, ours in zip(stock.turns[key], heddle.turns[key], strict=True):
            assert ours.status_code == theirs.status_code == 200
            assert shape(ours.json()) == shape(theirs.json())
        for told in both:
            cached = [turn.json()["meta_info"]["cached_tokens"] for turn in told.turns[key]]
            # The engines are the same ones, and the second caller finds the first one's prompts.
            assert min(cached[1:]) >= 200


def test_streams_and_chats_are_answered_alike(both):
    stock, heddle = both
    pairs = [(stock.streamed, heddle.streamed), *zip(stock.chats, heddle.chats, strict=True)]
    for theirs, ours in pairs:
        assert ours.status_code == theirs.status_code == 200
        media = [r.headers["content-type"].partition(";")[0] for r in (ours, theirs)]
        assert media[0] == media[1]
        assert bool(events(ours)) == bool(events(theirs))
        assert events(ours)[-1:] == events(theirs)[-1:]
    assert shape(heddle.chats[0].json()) == shape(stock.chats[0].json())


def test_an_engine_leaves_alike(both):
    stock, heddle = both
    assert heddle.gone.status_code == stock.gone.status_code == 202
    assert shape(heddle.gone.json()) == shape(stock.gone.json())
    assert len(heddle.left["workers"]) == len(stock.left["workers"]) == 1


def test_abort_by_rid_is_what_heddle_adds(both):
    stock, heddle = both
    assert (stock.aborted.status_code, heddle.aborted.status_code) == (404, 200)
