"""`heddle fleet` before a live fleet: what it prints, what it changes, what it refuses."""

from __future__ import annotations

import asyncio

import pytest
from app_server import TOKEN
from fleet_launcher import fleet_stack
from typer.testing import CliRunner

from heddle.app.cli import build
from heddle.app.commands.fleet import degrees
from heddle.app.errors import AppError
from heddle.controller.client import ControllerClient
from heddle.controller.errors import ControllerError
from heddle.controller.wire import RolloutBegin


@pytest.fixture
def fleet(tmp_path):
    """Run `heddle fleet WORDS` against a fleet of 4 GPUs, step by step."""
    (tmp_path / "secret").write_text(TOKEN)

    def asked(url, *words):
        where = ["--controller", url, "--token-file", str(tmp_path / "secret")]
        done = CliRunner().invoke(build(), ["fleet", *words, *where], catch_exceptions=False)
        return " ".join(done.output.split())

    async def play(script, *nodes, **config):
        async with fleet_stack(nodes or (4,), **config) as f:
            with ControllerClient(f.url, token=TOKEN) as client:
                await asyncio.to_thread(client.begin_rollout, RolloutBegin(run="r", rollout="o"))
            return await asyncio.to_thread(script, lambda *words: asked(f.url, *words))

    return play


async def test_a_change_is_shown_before_it_happens_made_and_told_afterwards(fleet):
    def script(heddle):
        return (
            heddle(),
            heddle("plan", "4"),
            heddle("apply", "1x4", "--why", "x", "--wait"),
            heddle(),
        )

    before, plan, applied, after = await fleet(script)
    assert "local: 4 of 4 GPUs serve" in before
    assert before.count("serving") == 4
    assert "wave 1: w0, w1, w2, w3 ends; 4 GPUs of node 0 (launch) begins" in plan
    assert "0 workers stay; at least 0 GPUs serve all the time" in plan
    assert "cost " in plan
    assert "4x1 to 1x4: done, " in applied
    assert "because x" in applied
    assert "w4" in after
    assert "4x1 to 1x4: done" in after


async def test_a_worker_is_drained_with_the_reason_and_resumed(fleet):
    def script(heddle):
        drained = heddle("drain", "w1", "--why", "its fan is loud")
        listed = heddle()
        return drained, listed, heddle("resume", "w1"), heddle()

    drained, listed, resumed, after = await fleet(script)
    assert "its fan is loud" in drained
    assert "local: 3 of 4 GPUs serve" in listed
    assert "draining - " in resumed
    assert "local: 4 of 4 GPUs serve" in after


async def test_weights_of_the_trainer_make_every_change_unavailable_with_the_reason(fleet):
    def script(heddle):
        said = heddle("weights", "trainer")
        plan, listed = heddle("plan", "4"), heddle()
        with pytest.raises(ControllerError, match="the trainer owns the weight-update group"):
            heddle("apply", "4")
        return said, plan, listed, heddle("weights", "disk", "/ckpt/7", "--version", "7")

    said, plan, listed, disk = await fleet(script)
    assert "owner trainer" in said
    assert "it cannot be applied: the trainer owns the weight-update group" in plan
    assert "the layout cannot change: the trainer owns" in listed
    assert "version 7" in disk


async def test_levers_say_for_every_trainer_what_works_and_why(fleet):
    levers = await fleet(lambda heddle: heddle("levers"))
    assert all(name in levers for name in ("verl, colocated", "slime", "external fleet"))
    assert levers.count("reallocation") >= 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "4x3x"), "'4x3x' is no layout; say as 4x8"),
        (("plan", "0x1"), "'0x1' is no layout; say as 4x8"),
        (("plan", "4x0"), "'4x0' is no layout; say as 4x8"),
        (("drain",), "name a worker, as w3; heddle fleet lists them"),
        (("weights", "nobody"), "'nobody' owns no weights; say engine, trainer, or disk"),
    ],
)
async def test_what_is_spelled_wrongly_is_one_sentence(fleet, words, said):
    def script(heddle):
        with pytest.raises(AppError, match=said):
            heddle(*words)

    await fleet(script, 1)


@pytest.mark.parametrize(
    ("layout", "found"),
    [("4x8+8x4", [8] * 4 + [4] * 8), ("8 + 4", [8, 4]), ("2x1,4", [1, 1, 4]), ("1", [1])],
)
def test_a_layout_is_spelled_as_engines_of_a_degree(layout, found):
    assert degrees(layout) == found
