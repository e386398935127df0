"""A real collector, controller, emulated fleet and dashboard, played and sent to once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from browser.fake_rollouts import HOSTILE
from browser.pages import streamlit

from heddle.app import compose
from heddle.app.demo import Bar, DemoOptions, run_demo
from heddle.app.rollouts import Session
from heddle.app.settings import load
from heddle.app.supervise import Supervisor
from heddle.collector import ids
from heddle.collector.client import CollectorClient
from heddle.collector.tracing import Emitter
from heddle.controller.client import ControllerClient

RUN = "browser"
LEARN = "learn"
BAD = "hostile"
SECOND = 1_000_000_000
AT = 1_796_000_000 * SECOND


@dataclass(frozen=True)
class Real:
    """A stack that has played a small demo, and the dashboard in front of it."""

    stack: compose.Stack
    supervisor: Supervisor
    dashboard: str
    collector: CollectorClient
    controller: ControllerClient


@contextmanager
def real_stack(data: Path) -> Generator[Real]:
    """Played, sent to, and up until the block ends."""
    settings = load({"data": data, "fleet.gpus": 2, "fleet.speed": 60.0})
    with Supervisor(data / "logs") as supervisor:
        stack = compose.launch(supervisor, settings, strict=False, dashboard=False)
        with Session(stack, RUN, watch=supervisor.check) as session:
            _play(session)
        _send(stack.settings.otlp_url)
        with (
            CollectorClient(stack.query_url) as collector,
            ControllerClient(stack.controller_url, token=stack.token) as controller,
            streamlit(stack.query_url, stack.controller_url, stack.token) as url,
        ):
            yield Real(stack, supervisor, url, collector, controller)


@contextmanager
def collecting(data: Path, ports: tuple[int, int, int]) -> Generator[str]:
    """A collector in a process of its own, killed outright when the block ends; its address."""
    http, query, grpc = map(str, ports)
    words = ["collect", "--data", str(data), "--http-port", http, "--query-port", query]
    command = [sys.executable, "-m", "heddle.app.cli", *words, "--grpc-port", grpc]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with CollectorClient(f"http://127.0.0.1:{query}") as client:
            client.wait_healthy(60)
        yield f"http://127.0.0.1:{query}"
    finally:
        process.kill()
        process.wait()


def send_one(port: int) -> None:
    """One trajectory of a run to the collector at that OTLP port."""
    emitter = Emitter(f"http://127.0.0.1:{port}", service="driver")
    _trajectory(emitter, RUN, "g0", "t0", 40)
    assert emitter.flush(60)
    emitter.close(5.0)


def _play(session: Session) -> None:
    """In a thread of its own: playwright's event loop runs in this one."""
    silent: Bar = lambda *_: nullcontext(lambda _: None)  # noqa: E731
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run_demo, session, DemoOptions(trajectories=8), silent).result()


def _send(url: str) -> None:
    """A run to learn from, and one whose every name is markup."""
    emitter = Emitter(url, service=HOSTILE)
    for group in range(48):
        for sample in range(4):
            _trajectory(emitter, LEARN, f"g{group}", f"t{group}-{sample}", 40 * (1 + group % 12))
    _trajectory(emitter, BAD, HOSTILE, "odd", 50, tool=HOSTILE)
    assert emitter.flush(60)
    emitter.close(5.0)


def _trajectory(
    emitter: Emitter, run: str, group: str, name: str, tokens: int, tool: str = "bash"
) -> None:
    """Three steps with a tool between, lengths by group."""
    whose = {
        "heddle.run.id": run,
        "heddle.rollout.id": "r0",
        "heddle.group.id": group,
        "gen_ai.conversation.id": name,
        "heddle.task": "coding",
        HOSTILE: HOSTILE,
    }
    trace, root = ids.trace_id(run, name), ids.span_id(run, name)

    def emit(op: str, span: str, begin: int, end: int, **more: object) -> None:
        emitter.emit(
            f"{op} {more.get('gen_ai.tool.name', '')}".strip(),
            trace_id=trace,
            span_id=span,
            parent_span_id=None if span == root else root,
            start_ns=AT + begin * SECOND,
            end_ns=AT + end * SECOND,
            attributes={**whose, "gen_ai.operation.name": op, **more},
        )

    for step in range(3):
        usage = {"gen_ai.usage.input_tokens": 300 + 90 * step, "heddle.step.index": step}
        usage["gen_ai.usage.output_tokens"] = tokens + (len(name) + step * 7) % 9
        span = ids.step_span_id(run, name, step)
        emit("chat", span, 10 * step, 10 * step + 6, **usage, **{"heddle.worker.id": "w0"})
        after = {"gen_ai.tool.name": tool, "heddle.step.index": step}
        emit("execute_tool", ids.span_id(run, name, step), 10 * step + 6, 10 * step + 9, **after)
    emit("invoke_agent", root, 0, 30)
