"""Commands run beside the pages: what they say becomes progress, a result or a sentence."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from heddle.dashboards import jobs as module
from heddle.dashboards.jobs import Job, Jobs

TWO = "import sys; print('1/2 rollouts', file=sys.stderr); print('2/2 rollouts', file=sys.stderr); "


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Runs `python -c WORD` instead of `heddle WORD`."""
    real, started = module.subprocess.Popen, list[Any]()

    def python(command: list[str], **how: Any) -> Any:
        started.append(real([sys.executable, "-c", command[-1]], **how))
        return started[-1]

    monkeypatch.setattr(module.subprocess, "Popen", python)
    yield Jobs()
    for process in started:
        process.kill()


def _ended(job: Job) -> Job:
    deadline = time.monotonic() + 60
    while job.is_running and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not job.is_running
    return job


def test_progress_and_the_printed_document_arrive(jobs: Jobs) -> None:
    job = _ended(jobs.start([TWO + "print('[1, 2]')"]))
    assert (job.done, job.total, job.share, job.result, job.failed) == (2, 2, 1.0, [1, 2], "")


def test_an_answer_larger_than_a_pipe_arrives_whole(jobs: Jobs) -> None:
    job = _ended(jobs.start(["import json; print(json.dumps('x' * 1_000_000))"]))
    assert len(job.result) == 1_000_000


def test_a_failure_is_the_sentence_it_said_last(jobs: Jobs) -> None:
    job = _ended(jobs.start(["import sys; sys.exit('heddle: the store holds no steps')"]))
    assert (job.result, job.failed) == (None, "the store holds no steps")


def test_one_runs_at_a_time_and_is_found_by_its_command(jobs: Jobs) -> None:
    first = jobs.start(["replay", "import time; time.sleep(60)"])
    assert jobs.start(["replay", "print(1)"]) is first
    assert jobs.find(["replay", "print(1)"]) is None
    assert _ended(jobs.start(["report", "pass"])).result == {}
    assert jobs.find(list(first.words)) is first
    first.stop()
    assert _ended(first).failed == "it was stopped"
    assert _ended(jobs.start(["replay", "print(1)"])).result == 1


def test_only_the_latest_are_kept(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    made = [_ended(jobs.start([f"print({number})"])) for number in range(3)]
    assert [jobs.find(job.words) for job in made] == [None, *made[1:]]
