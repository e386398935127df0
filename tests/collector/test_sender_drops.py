"""Does a sender that lost spans say so with what it sends next, and does the rollout know?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from otlp_server import spans_of

from heddle.app.bench.fleets import ROLLOUT, RUN, Fleet, big_fleet, stored
from heddle.collector.emitter import Emitter
from heddle.collector.queries.reading import read
from heddle.collector.queries.results import explain


class Losing:
    """Takes what it is told to; keeps the bodies it took."""

    refused = 0

    def __init__(self, *takes: bool) -> None:
        self.takes, self.bodies = list(takes), list[bytes]()

    def send(self, body: bytes) -> bool:
        taken = self.takes.pop(0) if self.takes else True
        self.bodies += [body] if taken else []
        return taken

    def shutdown(self) -> None:
        pass


def emit(emitter: Emitter, number: int) -> None:
    said = {"heddle.run.id": "exp"}
    ids = {"trace_id": f"{number:032x}", "span_id": f"{number:016x}"}
    emitter.emit("x", **ids, start_ns=number, end_ns=number + 5, attributes=said)
    assert emitter.flush()


def spans(body: bytes) -> list[tuple[str, int, dict[str, Any]]]:
    return [
        (one.name, one.start_time_unix_nano, {a.key: a.value for a in one.attributes})
        for one in spans_of(body)
    ]


def test_what_was_lost_is_told_once_with_the_next_batch_that_gets_through() -> None:
    sender = Losing(False, False, True, True)
    emitter = Emitter("http://nowhere", service="t", sender=sender)
    for number in range(1, 5):
        emit(emitter, number)
    emitter.close()
    first, second = (spans(body) for body in sender.bodies)
    assert [name for name, _, _ in first] == ["x", "heddle.sender"]
    _, at_ns, said = first[1]
    assert said["heddle.sender.dropped"].int_value == 2
    assert said["heddle.run.id"].string_value == "exp"
    assert at_ns == 3 + 5
    assert [name for name, _, _ in second] == ["x"]


def sender_row(fleet: Fleet, at: float, dropped: int, service: str) -> dict[str, Any]:
    at_ns = fleet.start_ns + round(at * (fleet.end_ns - fleet.start_ns))
    attrs = f'{{"heddle.sender.dropped": {dropped}}}'
    return {
        "trace_id": "ab" * 16, "span_id": f"{dropped:016x}", "name": "heddle.sender", "kind": 1,
        "op": "heddle.sender", "start_ns": at_ns, "end_ns": at_ns, "received_ns": at_ns,
        "status": "unset", "attrs": attrs, "dropped": 0, "run_id": RUN, "service": service,
    }  # fmt: skip


def test_a_rollout_knows_what_its_senders_lost_while_it_went_on(tmp_path: Path) -> None:
    fleet = big_fleet(8, 2, 40)
    # The trainer had lost 5 before the rollout began, and 12 and the agents 3 while it went on.
    told = ((-1.0, 5, "trainer"), (0.3, 9, "trainer"), (0.6, 17, "trainer"), (0.9, 3, "agents"))
    fleet.rows += [sender_row(fleet, *one) for one in told]
    with stored(tmp_path / "x", fleet, 1.0) as store, store.reading() as cursor:
        reading = read(cursor, RUN, ROLLOUT)
    assert reading is not None
    assert reading.dropped == 12 + 3
    found = next(one for one in explain(reading).findings if one.rule == "dropped-spans")
    assert "senders say they dropped 15 spans" in found.title
