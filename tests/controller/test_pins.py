"""Where trajectories are is known after a kill at any byte, and the file does not grow for ever."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import aiohttp
from hypothesis import given
from hypothesis import strategies as st

from heddle.controller import pins as module
from heddle.controller.pins import Pin, Pins

NAMES = st.sampled_from(["a", "b", 'c"\n', "d é"])
PUT = st.builds(Pin, NAMES, NAMES, st.just("w0"), st.integers(0, 9), st.integers(0, 1 << 62))
ACTIONS = st.lists(st.one_of(PUT, st.tuples(NAMES, NAMES)), max_size=30)


def kept(path: Path) -> dict:
    pins = Pins(path)
    pins.close()
    return {pin[:2]: pin for pin in pins.all()}


def played(pins: Pins, actions) -> dict:
    known = {}
    for action in actions:
        if isinstance(action, Pin):
            pins.put(action)
            known[action[:2]] = action
        else:
            pins.drop(*action)
            known.pop(action, None)
    return known


@given(ACTIONS, ACTIONS)
def test_the_newest_of_each_live_one_is_there_after_every_restart(first, second):
    with tempfile.TemporaryDirectory() as folder:
        path, known = Path(folder) / "c.pins", {}
        for actions in (first, second):
            pins = Pins(path)
            assert {pin[:2]: pin for pin in pins.all()} == known
            for key in known:
                pins.drop(*key)
            known = played(pins, actions)
            pins.close()
        assert kept(path) == known


def test_a_line_cut_short_costs_that_line_alone(tmp_path):
    path = tmp_path / "c.pins"
    pins = Pins(path)
    pins.put(Pin("r", "a", "w0", 3, 7))
    pins.put(Pin("r", "b", "w1", 4, 8))
    pins.close()
    path.write_bytes(path.read_bytes()[:-9])
    again = Pins(path)
    again.put(Pin("r", "c", "w2"))
    again.close()
    assert {p.trajectory: p.step for p in kept(path).values()} == {"a": 3, "c": -1}


def test_outdated_lines_are_given_up_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LINES", 10)
    path = tmp_path / "c.pins"
    pins = Pins(path)
    for step in range(100):
        pins.put(Pin("r", f"t{step % 3}", "w0", step, step))
        assert path.read_bytes().count(b"\n") <= 10 + 2 * 3 + 1
    pins.close()
    assert {p.trajectory: p.step for p in kept(path).values()} == {"t0": 99, "t1": 97, "t2": 98}


def test_lines_that_make_no_sense_are_skipped_and_counted(tmp_path):
    path = tmp_path / "c.pins"
    good = b'["r","a","w0",3,7]'
    bad = (
        b"7",
        b"null",
        b"{}",
        b'["r","a"',
        b'["r",1]',
        b'["r","a","w0",3]',
        b"\xff\xfe",
        b"[[],{}]",
    )
    path.write_bytes(b"\n".join([good, *bad, b'["r","b","w1",1,"7"]', b'["r","b","w1",4,8]', b""]))
    pins = Pins(path)
    pins.close()
    assert pins.skipped == len(bad) + 1
    assert {p.trajectory: p.step for p in pins.all()} == {"a": 3, "b": 4}


def test_a_full_disk_fails_nobody_and_all_is_written_once_there_is_room(tmp_path, monkeypatch):
    path = tmp_path / "c.pins"
    pins = Pins(path)
    pins.put(Pin("r", "a", "w0", 1, 1))
    full, write = True, os.write

    def writes(file: int, data: bytes) -> int:
        # As a disk with a few bytes left does it: half a line, then nothing.
        if full and len(data) > 4 and pins.failures == 0:
            return write(file, data[:4])
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    def no_room(self, data):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.open("wb").write(data)

    monkeypatch.setattr(module.os, "write", writes)
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", no_room)
        pins.put(Pin("r", "a", "w0", 2, 2))
        assert "half a line" in pins.failure
        pins.put(Pin("r", "b", "w1", 5, 5))
        pins.drop("r", "a")
        assert "No space left" in pins.failure
        assert pins.failures == 3
    # Killed now, it would know what stood there before.
    assert {p.trajectory: p.step for p in kept(tmp_path / "c.pins").values()} == {"a": 1}
    full = False
    pins.put(Pin("r", "c", "w0", 6, 6))
    assert pins.failure == ""
    pins.put(Pin("r", "c", "w0", 7, 7))
    pins.close()
    assert {p.trajectory: p.step for p in kept(path).values()} == {"b": 5, "c": 7}


async def test_a_step_is_served_on_a_full_disk_and_healthz_says_what_is_not_written(
    stack, monkeypatch, tmp_path
):
    async with stack(engines=1, data_dir=tmp_path) as s, aiohttp.ClientSession() as http:

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(module.os, "write", full)
        monkeypatch.setattr(Path, "write_bytes", full)
        said = {"X-Heddle-Run": "r", "X-Heddle-Trajectory-Id": "t"}
        for _ in range(2):
            body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 1}}
            async with http.post(f"{s.url}/generate", json=body, headers=said) as reply:
                assert reply.status == 200
                await reply.read()
        async with http.get(f"{s.url}/heddle/v1/healthz") as reply:
            told = await reply.json()
        monkeypatch.undo()
    assert "No space left" in told["pins_failure"]
    assert told["pins_failures"] >= 1
    assert told["decision_failures"] == 0
