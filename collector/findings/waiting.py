"""Did GPUs wait for tools, clients or a place in a queue, and can the telemetry be trusted?

Rules; each is silent below its threshold (thresholds.py).
"""

from __future__ import annotations

from heddle.collector.findings import thresholds as t
from heddle.collector.findings.case import Case, Finding, asking, finding
from heddle.collector.findings.starving import STARVED_STATES


def tool_bound(case: Case) -> Finding | None:
    """GPUs wait for tools."""
    lost, tools = case.share(("tool_wait",)), case.blame.by_tool
    if lost < t.TOOL_BOUND or not tools:
        return None
    tool = next(iter(tools))
    of_waits = tools[tool] / sum(tools.values())
    title = f"GPUs waited for tools {lost:.0%} of the time, {of_waits:.0%} of it for {tool!r}"
    knob = "tool concurrency and timeouts, or more trajectories per worker to fill the waits"
    return finding("tool-bound", lost, title, "tool_calls", knob)


def waiting_for_service(case: Case) -> Finding | None:
    """Trajectories wait for a place: GPUs stand by, or a large part of their time goes there."""
    parts, idle = case.part_shares(), case.share(("queued",))
    held, queued = parts.get("held", 0.0), parts.get("queued", 0.0)
    starves = case.share(STARVED_STATES) >= t.STARVED
    if idle < t.QUEUED_IDLE and (held + queued < t.WAITING or starves):
        return None
    title = (
        f"trajectories were held {held:.0%} and queued {queued:.0%} of their time; "
        f"{idle:.0%} of GPU time ran nothing while a request waited"
    )
    knob = "max_running_requests and KV size (mem_fraction_static), or more workers"
    if held > queued:
        knob = "admission: hold fewer first steps (hold-count, hold-kv margins), or more workers"
    return finding("waiting-for-service", max(idle, held + queued), title, "trajectories", knob)


def clients_wait(case: Case) -> Finding | None:
    """Trajectories are live, in no tool, and no engine has their request."""
    lost = case.share(("orchestrator",))
    if lost < t.CLIENTS_WAIT:
        return None
    late = case.signals.timeouts
    timeouts = f"; {late:,} steps ended by a timeout" if late else ""
    title = (
        f"engines idled {lost:.0%} of GPU time while trajectories were live, in no tool and at no "
        f"engine: clients wait for something between them{timeouts}"
    )
    knob = "the client side: router queue and timeouts, connection limits, agent-loop concurrency"
    return finding("clients-wait", lost, title, "blame?by=trajectory", knob)


def client_bound(case: Case) -> Finding | None:
    """Trajectories spend their time in the client between steps, whether GPUs idle or not."""
    share = case.part_shares().get("orchestrator", 0.0)
    if share < t.CLIENT_BOUND:
        return None
    steps = max(case.signals.steps, 1)
    each_s = int(case.parts["orchestrator_ns"].sum()) / steps / 1e9
    title = (
        f"trajectories spent {share:.0%} of their time between steps, in no tool and at no "
        f"engine: {each_s:,.2f} s a step in the client or the controller"
    )
    knob = "the agent loop: tokenisation, parsing and reward off its event loop, no fixed sleeps"
    return finding("client-bound", share, title, "decomposition?by=rollout", knob)


def invalid_tool_loop(case: Case) -> Finding | None:
    """A trajectory calls a tool that fails again and again."""
    loop = case.signals.loop
    if loop is None or loop.failed < t.INVALID_LOOP:
        return None
    parts = case.parts["duration_ns"].sum()
    mine = case.parts.filter(case.parts["trajectory_id"] == loop.trajectory_id)["duration_ns"].sum()
    title = (
        f"trajectory {loop.trajectory_id} called {loop.tool_name!r} {loop.failed} times in a row "
        f"without a valid result ({loop.calls} calls in all)"
    )
    knob = "a cap on failed calls in a row; the tool's schema and error text in the prompt"
    evidence = asking("tool_calls", trajectory=loop.trajectory_id)
    lost = int(mine) / int(parts) if parts else 0.0
    return finding("invalid-tool-loop", lost, title, evidence, knob)


def telemetry_gaps(case: Case) -> Finding | None:
    """Too much is unknown to judge; while the rollout runs that is only its right edge."""
    lost = case.share(("unknown",))
    if lost < t.UNKNOWN or case.provisional:
        return None
    s, why = case.signals, "spans were dropped or never sent"
    knob = "the sender's queue size and flush, and its count of dropped spans"
    if s.silent * 2 > s.steps:
        why = f"{s.silent:,} of {s.steps:,} steps told neither prefill nor decode"
        knob = "heddle.prefill_s and heddle.decode_s of steps: start engines with --enable-metrics"
    title = f"nothing is known of {lost:.0%} of GPU time: {why}"
    return finding("telemetry-gaps", lost, title, "partition?state=unknown", knob)


def dropped_spans(case: Case) -> Finding | None:
    """Step indices have holes, or a sender says that it dropped spans."""
    s = case.signals
    if case.provisional or (not s.dropped and s.missing_steps <= t.MISSING * max(s.steps, 1)):
        return None
    lost = case.share(("unknown",))
    said = f"; senders say they dropped {s.dropped:,} spans" if s.dropped else ""
    title = (
        f"{s.missing_steps:,} steps of {s.incomplete:,} trajectories are missing beside "
        f"{s.steps:,} seen: the sender dropped spans, {lost:.0%} of GPU time is unknown{said}"
    )
    knob = "the sender's queue size (OTEL_BSP_MAX_QUEUE_SIZE), batch and flush at exit"
    return finding("dropped-spans", lost, title, "partition?state=unknown", knob)
