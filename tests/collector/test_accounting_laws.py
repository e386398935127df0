"""Do the laws of the partition and of blame hold on thousands of random fleets?"""

from __future__ import annotations

import random
from collections import defaultdict
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.collector.accounting import account
from heddle.collector.activities import KINDS, LIVE_KINDS, Activity
from heddle.collector.blame import blame
from heddle.collector.critical_path import critical_path
from heddle.collector.grants import Lease, Window
from heddle.collector.states import BLAMED_KINDS, FLEET_STATES, IDLE

at = st.integers(-6, 24)
workers = st.sampled_from(["w0", "w1", "w2"])
leases = st.lists(st.builds(Lease, workers, st.integers(0, 4), at, at), max_size=6)
activity = st.builds(
    Activity, workers, st.sampled_from(KINDS), at, at,
    st.sampled_from(["", "a", "b", "c", "d"]), st.sampled_from(["", "bash", "search"]),
)  # fmt: skip
activities = st.lists(activity, max_size=4) | st.lists(activity, max_size=30)
covered = st.sampled_from([[], [Activity(f"w{i}", "covered", -6, 24) for i in range(3)]])
fleets = st.tuples(
    st.builds(Window, st.integers(-3, 3), st.integers(3, 20)),
    st.integers(0, 9),
    leases,
    st.builds(lambda a, c: a + c, activities, covered),
)


def classify(window: Window, worker: str, t: int, seen: list[Activity]) -> str:
    """The state of (worker, t) straight from the table of telemetry section 9.2."""

    def on(*kinds: str, instant: int = t, of: str = worker) -> bool:
        return any(
            x.kind in kinds and x.worker_id == of and x.start_ns <= instant < x.end_ns for x in seen
        )

    busy = (on("prefill"), on("decode"))
    live = [u for u in range(*window) if on(*LIVE_KINDS, instant=u)]
    if not live:
        fleet = {x.worker_id for x in seen}
        live = [u for u in range(*window) for w in fleet if on(*LIVE_KINDS, instant=u, of=w)]
    rules = (
        ("unknown", not on("covered")),
        ("down", on("down")),
        ("weight_sync", on("weight_sync")),
        ("busy_mixed", all(busy)),
        ("busy_prefill", busy[0]),
        ("busy_decode", busy[1]),
        ("reallocation", on("reallocation")),
        ("unknown", on("opaque")),
        ("migration", on("move")),
        ("queued", on("held", "queued")),
        ("tool_wait", on("tool")),
        ("orchestrator", on("live")),
        ("ramp_up", not live or t < min(live)),
        ("tail_bubble", t > max(live, default=t)),
        ("starved_gap", True),
    )
    return next(state for state, holds in rules if holds)


def brute(
    window: Window, gpus: int, held: list[Lease], seen: list[Activity]
) -> dict[tuple[str | None, int, str], int]:
    """by_worker, nanosecond by nanosecond."""
    total: dict[tuple[str | None, int, str], int] = defaultdict(int)
    for t in range(*window):
        left, holds = gpus, dict[str, Lease]()
        for lease in sorted(held, key=lambda x: (x.start_ns, x.end_ns, x.degree)):
            if lease.start_ns <= t < lease.end_ns and lease.degree > 0:
                holds[lease.worker_id] = lease
        for lease in sorted(holds.values(), key=lambda x: (x.start_ns, x.worker_id)):
            width = min(lease.degree, left)
            left -= width
            if width:
                state = classify(window, lease.worker_id, t, seen)
                total[lease.worker_id, lease.degree, state] += width
        if left:
            total[None, 0, "unallocated"] += left
    return total


@settings(max_examples=200, deadline=None)
@given(fleets)
def test_the_sweep_agrees_with_classifying_every_nanosecond(
    fleet: tuple[Window, int, list[Lease], list[Activity]],
) -> None:
    assert account(*fleet).by_worker == brute(*fleet)


def conserves(window: Window, gpus: int, held: list[Lease], seen: list[Activity]) -> None:
    """States, strips, blame and critical path of one fleet add up, to the nanosecond."""
    accounts = account(window, gpus, held, seen)
    wall = window.end_ns - window.start_ns
    assert sum(accounts.gpu_ns.values()) == gpus * wall
    assert sum(accounts.by_worker.values()) == gpus * wall
    assert sum(s.gpus * (s.end_ns - s.start_ns) for s in accounts.strips) == gpus * wall
    split = blame(accounts)
    assert 0 <= split.explained_ns <= split.idle_ns
    assert sum(split.by_worker.values()) == split.explained_ns
    assert sum(split.by_trajectory.values()) + split.unexplained_ns == split.idle_ns
    for state, amount in split.by_state.items():
        assert amount <= accounts.gpu_ns[state]  # pyright: ignore[reportArgumentType]
    assert critical_path(window, seen).makespan_ns == wall


@settings(max_examples=200, deadline=None)
@given(fleets)
def test_states_blame_and_critical_path_conserve_exactly(
    fleet: tuple[Window, int, list[Lease], list[Activity]],
) -> None:
    conserves(*fleet)


def test_a_thousand_random_fleets_of_epoch_nanoseconds_conserve_exactly() -> None:
    rng = random.Random(9)
    for _ in range(1000):
        start = 1_790_000_000 * 10**9 + rng.randrange(10**9)
        window = Window(start, start + rng.randrange(10**13))
        at = (window.end_ns - start) // 8

        def when(at: int = at, start: int = start) -> int:
            return start - at + rng.randrange(10 * at + 1)

        names = [f"w{k}" for k in range(rng.randrange(1, 5))]
        held = [Lease(w, rng.randrange(9), when(), when()) for w in names for _ in range(2)]
        seen = [Activity(w, "covered", *window) for w in names]
        for _ in range(rng.randrange(30)):
            trajectory, tool = rng.choice("abcdefg"), rng.choice(["bash", "search"])
            activity = (rng.choice(names), rng.choice(KINDS), when(), when(), trajectory, tool)
            seen.append(Activity(*activity))
        conserves(window, rng.randrange(40), held, seen)


def fair_shares(
    window: Window, strips: list[tuple[str, str, int, int]], seen: list[Activity]
) -> dict[tuple[str, str], Fraction]:
    """Blame by (state, trajectory), as exact fractions, nanosecond by nanosecond."""
    shares: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for state, worker, t, width in strips:
        kinds = LIVE_KINDS if state in FLEET_STATES else BLAMED_KINDS.get(state, ())  # pyright: ignore[reportArgumentType, reportCallIssue]
        guilty = {
            x.trajectory_id
            for x in seen
            if x.kind in kinds and x.start_ns <= t < x.end_ns and x.trajectory_id
            and (state in FLEET_STATES or x.worker_id == worker)
        }  # fmt: skip
        for trajectory in guilty:
            shares[state, trajectory] += Fraction(width, len(guilty))
    return shares


@settings(max_examples=100, deadline=None)
@given(fleets)
def test_no_share_of_blame_is_a_nanosecond_per_worker_off_the_fair_one(
    fleet: tuple[Window, int, list[Lease], list[Activity]],
) -> None:
    accounts = account(*fleet)
    pieces = [
        (s.state, s.worker_id or "", t, s.gpus)
        for s in accounts.strips if s.state in IDLE
        for t in range(s.start_ns, s.end_ns)
    ]  # fmt: skip
    fair = fair_shares(fleet[0], pieces, fleet[3])
    got: dict[tuple[str, str], int] = defaultdict(int)
    for cell in blame(accounts).cells:
        got[cell.state, cell.trajectory_id] += cell.gpu_ns
    # Each of three workers rounds its own states, and a trajectory's tools round apart.
    for key in fair.keys() | got.keys():
        assert abs(got[key] - fair[key]) < 6
    assert sum(got.values()) == sum(fair.values())


def test_years_of_many_workers_are_cut_where_they_are_cut() -> None:
    # Cells and nanoseconds do not share 64 bits then.
    whole, count = 1 << 57, 30
    window = Window(1_790_000_000 * 10**9, 1_790_000_000 * 10**9 + whole)
    seen: list[Activity] = []
    for k in range(count):
        at = window.start_ns + whole // 50 * k
        seen.append(Activity(f"w{k}", "covered", *window))
        seen.append(Activity(f"w{k}", "decode", at, at + whole // 9 + k, f"t{k}"))
        seen.append(Activity(f"w{k}", "tool", at + whole // 9 + k, at + whole // 4, f"t{k}", "x"))
    found = account(window, count, [Lease(f"w{k}", 1, *window) for k in range(count)], seen)
    assert sum(found.gpu_ns.values()) == found.total_gpu_ns
    decoded = [found.by_worker[f"w{k}", 1, "busy_decode"] for k in range(count)]
    assert decoded == [whole // 9 + k for k in range(count)]
    waited = blame(found)
    assert waited.by_tool == {"x": found.gpu_ns["tool_wait"]}
    assert waited.explained_ns + waited.unexplained_ns == found.idle_ns
