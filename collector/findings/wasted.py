"""Which work was thrown away: steps an engine refuses, groups that lost a sample?"""

from __future__ import annotations

from heddle.collector.blame import used
from heddle.collector.findings import thresholds as t
from heddle.collector.findings.case import Case, Finding, finding


def refused(case: Case) -> Finding | None:
    """Engines refuse steps: what they ask for does not fit the model's length, or is malformed."""
    s = case.signals
    if not s.refused or s.refused < t.REFUSED * s.steps:
        return None
    longest = f", with prompts of up to {s.refused_tokens:,} tokens" if s.refused_tokens else ""
    title = f"engines refused {s.refused:,} of {s.steps:,} steps (HTTP 400, 413 or 422){longest}"
    knob = "check context + max_new_tokens <= max_model_len before a step, and before a resume"
    return finding("refused-steps", s.refused / s.steps, title, "steps", knob)


def group_waste(case: Case) -> Finding | None:
    """Trajectories that failed spoil their groups, and a trainer makes whole groups anew."""
    s = case.signals
    whole = len({group for group in case.blame.groups.values() if group})
    if not whole or len(s.spoiled) < t.SPOILED * whole:
        return None
    mine = {name for name, group in case.blame.groups.items() if group in s.spoiled}
    shares = used(case.accounts)
    again = sum(ns for name, ns in shares.items() if name in mine)
    lost = again / case.accounts.total_gpu_ns if case.accounts.total_gpu_ns else 0.0
    title = (
        f"{len(s.spoiled):,} of {whole:,} groups ({len(s.spoiled) / whole:.0%}) lost a sample: "
        f"{s.failed:,} of {len(case.blame.groups):,} trajectories failed or were aborted; made "
        f"anew, these groups cost {again / 1e9:,.0f} busy GPU-s once more"
    )
    knob = "retry the sample, not its group; find out what aborts (infrastructure, timeouts)"
    return finding("group-waste", lost, title, "cost?by=group", knob)
