"""Where trajectories are is known after a kill at any byte, and the file does not grow for ever."""

from __future__ import annotations

import tempfile
from pathlib import Path

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
