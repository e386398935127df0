"""How do new priorities reach requests that already wait inside an SGLang engine?

SGLang loads this in each of its processes (entry point `sglang.srt.plugins`); standard library
alone. Rank 0 listens; changes ride its own broadcast of requests, so that every rank applies them
in the same iteration: a table read by each rank alone makes the ranks build different batches and
kills an engine of two ranks. One flush per interval, one change per request and interval. Off
without HEDDLE_PRIORITY_PORT, and under DP attention, whose broadcast goes elsewhere.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = "HEDDLE_PRIORITY_PORT"
PROTOCOL = 1
"""What a controller must speak: one of another number is not used."""
FLUSH_S = 0.05
"""20 broadcasts of changes a second at most: random tables at 500 a second let nothing finish."""
CHANGE_S = 0.5
"""Between two changes of one request."""
MARGIN = 0
"""A change no larger than this is not made."""
KEPT = 65_536
MARK = "heddle-priorities"
RECEIVER = (
    "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
    "._broadcast_reqs_across_ranks"
)
POLICY = "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority"
STATE = (
    "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"
    ".get_internal_state"
)
PREEMPT = "sglang.srt.managers.schedule_policy.PrefillAdder.preempt_to_schedule"


class Pending:
    """Changes asked for at rank 0 that have not been broadcast."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._asked: dict[str, int] = {}
        self._sent: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._flushed_s = float("-inf")
        self.counts = {"asked": 0, "sent": 0, "applied": 0, "preemptions": 0}

    def ask(self, changes: dict[str, int]) -> None:
        """The newest wish for a request wins."""
        with self._lock:
            self._asked.update(changes)
            self.counts["asked"] += len(changes)

    def due(self) -> dict[str, int]:
        """What may go out now; what changed too lately stays for a later flush."""
        now_s = self._now_s()
        if not self._asked or now_s - self._flushed_s < FLUSH_S:
            return {}
        with self._lock:
            ready = {r: p for r, p in self._asked.items() if self._is_due(r, p, now_s)}
            same = [r for r, p in self._asked.items() if self._is_same(r, p)]
            for rid in (*ready, *same):
                del self._asked[rid]
            for rid, priority in ready.items():
                self._sent.pop(rid, None)
                self._sent[rid] = (now_s, priority)
            while len(self._sent) > KEPT:
                self._sent.popitem(last=False)
            self.counts["sent"] += len(ready)
        self._flushed_s = now_s
        return ready

    def _is_same(self, rid: str, priority: int) -> bool:
        sent = self._sent.get(rid)
        return sent is not None and abs(priority - sent[1]) <= MARGIN

    def _is_due(self, rid: str, priority: int, now_s: float) -> bool:
        sent = self._sent.get(rid)
        since_s = now_s - sent[0] if sent else float("inf")
        return since_s >= CHANGE_S and not self._is_same(rid, priority)


class Table:
    """What the broadcast said; the same on every rank, applied to requests as they wait."""

    def __init__(self) -> None:
        self._changes: OrderedDict[str, int] = OrderedDict()

    def take(self, received: list[Any] | None) -> list[Any] | None:
        """The received requests without the marks that came with them."""
        if not received:
            return received
        kept: list[Any] = []
        for one in received:
            if isinstance(one, tuple) and len(one) == 2 and one[0] == MARK:
                for rid, priority in one[1].items():
                    self._changes.pop(rid, None)
                    self._changes[rid] = priority
            else:
                kept.append(one)
        while len(self._changes) > KEPT:
            self._changes.popitem(last=False)
        return kept

    def apply(self, requests: Sequence[Any]) -> int:
        """Set the priorities of those that wait; returns how many changed."""
        if not self._changes:
            return 0
        changed = 0
        for request in requests:
            priority = self._changes.pop(request.rid, None)
            if priority is not None and request.priority != priority:
                request.priority = priority
                changed += 1
        return changed


PENDING, TABLE = Pending(), Table()
_listening: list[ThreadingHTTPServer] = []


def broadcast(original: Any, self: Any, recv_reqs: Any, local_reqs: Any = None) -> Any:
    """Around SGLang's broadcast: rank 0 adds what is due, every rank takes it out again."""
    if recv_reqs is not None:
        if not _listening:
            _listening.append(listen(int(os.environ[PORT])))
        due = PENDING.due()
        if due:
            recv_reqs = [*recv_reqs, (MARK, due)]
    return TABLE.take(original(self, recv_reqs, local_reqs))


def calc_priority(original: Any, self: Any, waiting_queue: Any, *more: Any, **named: Any) -> Any:
    """Around the sort of the queue: first the new priorities, in the running batch too."""
    changed = TABLE.apply(waiting_queue)
    batch = more[0] if more else named.get("running_batch")
    changed += TABLE.apply(getattr(batch, "reqs", None) or ())
    PENDING.counts["applied"] += changed
    return original(self, waiting_queue, *more, **named)


def preempted(result: Any, *_: Any, **__: Any) -> Any:
    """After a preemption was tried: count those that were made."""
    PENDING.counts["preemptions"] += bool(result)
    return result


def stated(result: Any, *_: Any, **__: Any) -> Any:
    """In /server_info: where priorities are taken, so that a controller finds the plugin."""
    result.internal_state["heddle_priority_port"] = int(os.environ[PORT])
    return result


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """{"changes": {rid: priority}}"""
        try:
            raw = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 8 << 20))
            changes = {str(k): int(v) for k, v in json.loads(raw)["changes"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            self._say(400, {"error": 'send {"changes": {"<rid>": <integer priority>}}'})
            return
        PENDING.ask(changes)
        self._said(len(changes))

    def do_GET(self) -> None:
        """What happened so far."""
        self._said(0)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: SGLang's log is not ours."""

    def _said(self, taken: int) -> None:
        known = {"plugin": "heddle", "protocol": PROTOCOL, "taken": taken}
        self._say(200, {**known, **PENDING.counts})

    def _say(self, status: int, said: dict[str, Any]) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def listen(port: int) -> ThreadingHTTPServer:
    """Take changes on loopback in a thread of rank 0's process."""
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    threading.Thread(target=server.serve_forever, name="heddle-priorities", daemon=True).start()
    return server


def register() -> None:
    """What SGLang calls in each process."""
    if not os.environ.get(PORT):
        return
    from sglang.srt.plugins.hook_registry import (  # pyright: ignore[reportMissingImports]
        HookRegistry,
        HookType,
    )

    HookRegistry.register(RECEIVER, broadcast, HookType.AROUND)
    HookRegistry.register(POLICY, calc_priority, HookType.AROUND)
    HookRegistry.register(PREEMPT, preempted, HookType.AFTER)
    HookRegistry.register(STATE, stated, HookType.AFTER)
