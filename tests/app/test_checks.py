"""Claims about mistakes that are known before a process starts: one sentence each, and soon."""

from __future__ import annotations

import io
import json
import time
from contextlib import redirect_stdout

import polars as pl
import pytest

from heddle.app import checks
from heddle.app.cli import build
from heddle.app.demo import DemoOptions, workload
from heddle.app.driver import DriveResult


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("subprocess.Popen", _no_process)


def _no_process(*_, **__):
    raise AssertionError("a process was started")


def ran(*words):
    build()([str(word) for word in words], standalone_mode=False)


def refused(*words):
    with pytest.raises(Exception) as said:
        ran(*words)
    assert not isinstance(said.value, AssertionError)
    return str(getattr(said.value, "message", said.value))


ADDRESSES = [
    ("engine", "--otlp-endpoint"),
    ("control", "--collector"),
    ("control", "--collector-queries"),
    ("control", "--worker"),
    ("up", "--worker"),
    ("dash", "--collector"),
    ("dash", "--controller"),
    ("import", "otlp-json", "t.json", "--otlp"),
    ("switch", "--controller"),
    ("diagnose", "--collector"),
    ("profile",),
]


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--workload", "demo"),
        ("replay", "--policies", "verl"),
        ("replay", "x.parquet"),
        ("demo",),
        ("up",),
        ("control",),
    ],
)
def test_more_gpus_than_a_fleet_has_are_refused_before_anything_is_planned(words, monkeypatch):
    monkeypatch.setattr("heddle.controller.emulator.workload.generate", _no_process)
    said = refused(*words, "--gpus", checks.MOST_GPUS + 1)
    assert str(checks.MOST_GPUS) in said


@pytest.mark.parametrize("seed", [-1, 2**31, 10**22])
@pytest.mark.parametrize("command", ["demo", "engine", "plan", "replay", "train"])
def test_a_seed_that_some_generator_cannot_take_is_refused(command, seed):
    assert "should be" in refused(command, "--seed", seed)


@pytest.mark.parametrize("value", ["nonsense", "host:4318", "http://", "http://host:99999"])
@pytest.mark.parametrize("words", ADDRESSES)
def test_an_address_that_cannot_be_called_is_refused_and_named(words, value):
    said = refused(*words, value)

    assert "expected an address such as http://host:port" in said
    assert repr(value) in said


@pytest.mark.parametrize("value", ["http://[::1]:4318", "https://gateway/spans", "http://a:1/"])
def test_an_address_with_a_path_without_a_port_or_of_ipv6_is_one(value):
    assert checks.address(value) == value


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
@pytest.mark.parametrize(
    "words",
    [
        ("demo", "--speed"),
        ("up", "--speed"),
        ("replay", "x.parquet", "--speed"),
        ("replay", "x.parquet", "--max-tool-wait"),
        ("replay", "--policies", "verl", "--error"),
        ("control", "--clock-speed"),
        ("engine", "--clock-speed"),
        ("engine", "--launch-delay"),
        ("diagnose", "--price"),
    ],
)
def test_a_number_that_cannot_be_calculated_with_is_refused(words, value):
    said = refused(*words, value)

    assert "finite" in said or "should be" in said


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("engine", "--port"), "-1"),
        (("engine", "--port"), "65536"),
        (("engine", "--clock-speed"), "1e300"),
        (("engine", "--launch-delay"), "1e300"),
        (("engine", "--clock-origin-ns"), "99999999999999999999"),
        (("engine", "--kv-tokens"), "99999999999999999999"),
        (("engine", "--max-running"), "99999999999999999999"),
        (("engine", "--preemption-threshold"), "99999999999999999999"),
        (("engine", "--hicache-ratio"), "1e300"),
        (("control", "--clock-speed"), "1e300"),
        (("up", "--speed"), "1e300"),
    ],
)
def test_a_number_beyond_what_a_machine_has_is_refused(words, value):
    assert "should be" in refused(*words, value)


def test_a_profile_that_cannot_be_kept_is_not_measured(tmp_path):
    """It was measured for minutes and lost."""
    taken = tmp_path / "taken"
    taken.touch()
    said = refused("profile", "http://127.0.0.1:1", "--data", str(taken))
    assert "cannot be written" in said


@pytest.mark.parametrize("speed", [0.5, 1.0, 20.0])
def test_an_engine_without_an_origin_begins_now_at_every_speed(monkeypatch, speed):
    """At 20 it ended at its first line: 20 times the nanoseconds since 1970 have no 64 bits."""
    served = []
    monkeypatch.setattr(
        "heddle.controller.emulator.http.serve", lambda *_, clock, **__: served.append(clock)
    )
    ran("engine", "--clock-speed", speed)
    (clock,) = served
    assert abs(clock.now_ns() - time.time_ns()) < 3600e9 * speed


def test_a_storage_that_is_no_folder_is_one_sentence(tmp_path):
    taken = tmp_path / "taken"
    taken.touch()
    said = refused("engine", "--port", "0", "--hicache-storage", str(taken))
    assert "no folder that this process can write in" in said


@pytest.mark.parametrize("value", ["inf", "nan"])
@pytest.mark.parametrize("name", ["FLEET__SPEED", "COLLECT__KEEP_DAYS", "COLLECT__SQL_SECONDS"])
def test_nor_from_the_environment(monkeypatch, name, value):
    monkeypatch.setenv(f"HEDDLE_{name}", value)

    said = refused("up")

    assert name.lower().replace("__", ".") in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("up", "--preset", "hedle"), "--preset 'hedle' is not known; choose one of verl,"),
        (("up", "--model", "GPT-9"), "model 'GPT-9'"),
        (("up", "--system", "b300"), "choose one of h100_sxm, h200_sxm"),
        (("up", "--host", "nowhere.invalid"), "host 'nowhere.invalid'"),
        (("control", "--model", "GPT-9"), "model 'GPT-9'"),
        (("control", "--host", "nowhere.invalid"), "does not resolve"),
        (("collect", "--host", "nowhere.invalid"), "does not resolve"),
        (("engine", "--system", "b300"), "system 'b300'"),
        (("engine", "--host", "nowhere.invalid"), "does not resolve"),
        (("dash", "--host", "nowhere.invalid"), "does not resolve"),
        (("replay", "x.parquet", "--preset", "hedle"), "--preset 'hedle'"),
        (("replay", "--policies", "hedle"), "hedle"),
        (("replay", "--policies", "verl", "--model", "GPT-9"), "model 'GPT-9'"),
        (("switch", "ordr=fcfs"), "no choice 'ordr' to switch; choose one of preset, order,"),
        (("sql", " "), "there is no SELECT; say one"),
    ],
)
def test_an_unknown_name_is_said_with_the_known_ones(words, says):
    said = refused(*words)

    assert says in said
    assert "\n" not in said


def test_the_help_states_the_limits_that_the_code_has(capsys):
    from inspect import signature

    from heddle.app.commands import demo, replay
    from heddle.app.driver import VOCABULARY
    from heddle.app.lag import LIMIT

    for command in (demo.run, replay.run):
        assert f"above {LIMIT * 100:.0f} %" in " ".join((command.__doc__ or "").split())
    assert signature(replay.run).parameters["vocabulary"].default == VOCABULARY


def test_a_demo_refuses_a_model_of_the_environment_that_nobody_knows(monkeypatch):
    monkeypatch.setenv("HEDDLE_FLEET__MODEL", "GPT-9")

    assert "HEDDLE_FLEET__MODEL" in refused("demo", "--no-dashboard")


def test_an_organisation_before_a_known_model_is_fine():
    checks.profile("h100_sxm", "Qwen/Qwen3-14B")


@pytest.mark.parametrize("words", [("switch",), ("switch", "order=fcfs"), ("plan", "--json")])
def test_asking_makes_no_token(words, tmp_path):
    assert "controller" in refused(*words, "--controller", "http://127.0.0.1:9")
    assert not (tmp_path / ".heddle").exists()


def test_a_token_file_that_is_not_there_is_named_and_not_made(tmp_path):
    path = tmp_path / "absent"

    assert f"no token file {path}" in refused("switch", "order=fcfs", "--token-file", path)
    assert not path.exists()


def test_a_folder_that_takes_no_file_is_named_with_what_to_do(tmp_path, monkeypatch):
    def full(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checks.tempfile, "TemporaryFile", full)
    for command in ("up", "collect", "control"):
        said = refused(command, "--data", tmp_path / "d")
        assert f"{tmp_path}/d cannot be written: Permission denied" in said
        assert "HEDDLE_DATA" in said


def test_doctor_lists_variables_that_nothing_reads_and_a_host_that_is_none(monkeypatch):
    monkeypatch.setenv("HEDDLE_DATE", "x")
    monkeypatch.setenv("HEDDLE_CONFIG", "other.toml")
    monkeypatch.setenv("HEDDLE_FLEET__GPUS", "4")
    monkeypatch.setenv("HEDDLE_HOST", "nowhere.invalid")
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as ended:
        ran("doctor", "--json")

    told = json.loads(out.getvalue())
    ignored = [note for note in told["notes"] if "ignored" in note]
    assert ["HEDDLE_DATE" in note for note in ignored] == [True]
    assert any("does not resolve" in problem for problem in told["problems"])
    assert ended.value.code == 1


def test_promote_names_the_flag_and_not_an_argument_of_python(monkeypatch):
    from heddle.controller.client import ControllerClient
    from heddle.controller.errors import ControllerError

    def refuse(*_, **__):
        raise ControllerError("v1 may not serve, worse; force=True overrides and is noted")

    monkeypatch.setattr(ControllerClient, "promote", refuse)

    said = refused("promote", "v1", "--controller", "http://127.0.0.1:9")

    assert said == "v1 may not serve, worse; --force overrides and is noted"


def test_a_controller_says_which_engine_is_silent_and_serves(monkeypatch, capsys):
    served = []
    monkeypatch.setattr("heddle.controller.service.serve", served.append)

    ran(
        "control",
        "--port",
        "0",
        "--worker",
        "http://127.0.0.1:9",
        "--worker",
        "http://127.0.0.1:19",
    )

    said = capsys.readouterr().err.splitlines()
    assert [line.split(" now;")[0] for line in said] == [
        "no engine answers at http://127.0.0.1:9/health",
        "no engine answers at http://127.0.0.1:19/health",
    ]
    assert served[0].workers == ("http://127.0.0.1:9", "http://127.0.0.1:19")


@pytest.mark.parametrize("trajectories", [1, 2, 7, 63, 64, 65, 256])
def test_a_demo_has_as_many_trajectories_as_asked_for(trajectories):
    specs = workload(DemoOptions(trajectories=trajectories), epoch=1)
    sizes = pl.Series([spec.group_id for spec in specs]).value_counts()["count"]

    assert len(specs) == len({spec.trajectory_id for spec in specs}) == trajectories
    assert sizes.max() == (16 if trajectories >= 64 else min(4, trajectories))
    assert workload(DemoOptions(trajectories=trajectories), epoch=1) == specs


def test_without_a_terminal_progress_is_whole_lines(capsys, monkeypatch):
    from rich.console import Console

    from heddle.app import show

    monkeypatch.setattr(show, "ERR", Console(stderr=True, soft_wrap=True, highlight=False))
    title = "rollout warm-up of a run with quite a long name under preset heddle-paper"
    with show.bar(title, 8) as progress:
        for done in range(1, 9):
            progress(DriveResult(finished=done, steps=10 * done))
    with show.counter("paired replay", "rollouts") as counted:
        counted(3)

    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert [line.split(": ")[1].split(",")[0] for line in lines[:-1]] == [
        "8 trajectories ...",
        *(f"{done}/8 trajectories" for done in (2, 4, 6, 8)),
    ]
    assert lines[-1] == "paired replay: 3 rollouts"
    assert "..." not in "".join(lines[1:])


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("replay", "traces.parquet", "--workload", "coding"), "--workload"),
        (("replay", "traces.parquet", "--max-context", "9", "--seeds", "2"), "--seeds"),
        (("replay", "--policies", "verl,heddle", "--limit", "3"), "--limit"),
        (("replay", "--policies", "verl", "--max-tool-wait", "3"), "--max-tool-wait"),
    ],
)
def test_a_flag_of_the_other_kind_of_replay_is_refused_and_named(words, flag):
    said = refused(*words)
    assert said.startswith(f"{flag}: only where")
