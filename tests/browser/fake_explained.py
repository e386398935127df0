"""What the collector would explain of a Story's rollout: findings, blame, the chain to the end."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from browser.fake_rollouts import RUN, SECOND, Story


def explain(story: Story) -> Story:
    """The same story with findings, blame, critical path and efficiency of every rollout."""
    for row in story.rows["rollouts"]:
        _rollout(story, {"run_id": RUN, "rollout_id": row["rollout_id"]})
    return story


def _rollout(story: Story, key: dict[str, Any]) -> None:
    name = key["rollout_id"]
    mine = [row for row in story.rows["trajectories"] if row["rollout_id"] == name]
    parts = [row for row in story.rows["partition"] if row["rollout_id"] == name]
    if not mine or not parts:
        return
    last = max(mine, key=lambda row: row["end_ns"] or 0)
    total = sum(row["gpu_ns"] for row in parts)
    busy = sum(row["gpu_ns"] for row in parts if row["state"].startswith("busy"))
    idle = total - busy
    _findings(story, key, last["trajectory_id"], idle / total)
    ranked = sorted(mine, key=lambda row: -(row["duration_s"] or 0))
    for place, row in enumerate(ranked):
        share = 0.5 ** (place + 1)
        named = {"by": "trajectory", "key": row["trajectory_id"], "share": share}
        story.rows["blame"].append({**key, **named, "gpu_ns": int(idle * share)})
    split = {"total_gpu_ns": total, "busy_gpu_ns": busy, "effective_gpu_ns": int(busy * 0.8)}
    split |= {"recoverable_gpu_ns": idle // 4, "unavoidable_gpu_ns": idle // 3, "saturated": 16}
    story.rows["efficiency"].append({**key, **split})
    _path(story, key, last)


def _findings(story: Story, key: dict[str, Any], last: str, lost: float) -> None:
    rollout = key["rollout_id"]
    found = {
        "rule": "tail_bubble",
        "severity": "high",
        "title": f"GPUs waited for {last} after every other trajectory had ended",
        "evidence": f"steps?{urlencode({'trajectory': last, 'run': RUN, 'rollout': rollout})}",
        "knob": "order=longest-first",
        "lost_share": lost,
    }
    story.rows["findings"].append({**key, **found})


def _path(story: Story, key: dict[str, Any], last: dict[str, Any]) -> None:
    at, name = last["start_ns"], last["trajectory_id"]
    for doing in ("queued", "decode", "tool", "decode"):
        piece = {"trajectory_id": name, "doing": doing, "start_ns": at, "end_ns": at + SECOND}
        story.rows["critical_path"].append({**key, **piece, "worker_id": "w0"})
        at += SECOND
