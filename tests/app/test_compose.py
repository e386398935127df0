"""Claims about starting a stack: ports that are lost are chosen anew, where the choice is free."""

from __future__ import annotations

import socket

import pytest

from heddle.app import compose, supervise
from heddle.app.commands.control import launching
from heddle.app.compose import LOST, settle_ports
from heddle.app.errors import AppError, ChildDied, PortInUse, PortLost
from heddle.app.settings import load
from heddle.app.supervise import Supervisor, free_port
from heddle.controller.clock import Clock


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def settings(tmp_path):
    names = ("otlp_grpc", "otlp_http", "queries", "controller", "dashboard")
    return load({"data": tmp_path, **{f"ports.{name}": free_port() for name in names}})


def died(tmp_path, tail):
    return ChildDied("collector", 2, tmp_path / "collector.log", tail)


def test_engines_that_register_themselves_are_let_in_and_none_is_launched(settings, tmp_path):
    settings.fleet.registers = True
    words = compose.controller_arguments(settings, Clock())
    assert "--open-registration" in words
    assert not {"--launch-template", "--worker", "--fleet"} & set(words)
    emulated = compose.controller_arguments(load({"data": tmp_path}), Clock())
    assert "--launch-template" in emulated
    assert "--open-registration" not in emulated


def test_a_name_that_clients_may_use_reaches_the_controller(settings):
    settings.allow_host = ("heddle.cluster", "gpu0")
    words = compose.controller_arguments(settings, Clock())
    given = [words[at + 1] for at, word in enumerate(words) if word == "--allow-host"]
    assert given == ["heddle.cluster", "gpu0"]
    assert "--allow-host" not in compose.controller_arguments(load(), Clock())


TAIL = "heddle: port 4318 on 127.0.0.1 is in use, and the collector wants it for OTLP over HTTP"


def test_what_the_controller_has_no_option_for_reaches_it_whoever_composed_the_stack(
    monkeypatch, settings
):
    fleet = {"ready_s": 300.0, "degree_flags": {8: "--x 1"}, "host_memory_gb": 2.0}
    given = load({"data": settings.data, **{f"fleet.{k}": v for k, v in fleet.items()}})
    for name, value in compose.controller_environment(given).items():
        monkeypatch.setenv(name, value)
    found = launching(load({"data": settings.data}))
    assert (found["ready_s"], found["degree_flags"]) == (300.0, {8: ("--x", "1")})
    assert found["host_bytes"] == (2_000_000_000,)


def launched(monkeypatch, settings, tmp_path, failures, started, **more):
    """`launch` with a `start` that fails so often; returns the stack and what was said."""
    said, left = [], list(failures)

    def start(supervisor, chosen, **_):
        started.append(chosen.ports)
        if left:
            raise left.pop(0)
        return "the stack"

    monkeypatch.setattr(compose, "start", start)
    asked = {"strict": False, "dashboard": False, "say": said.append, **more}
    stack = compose.launch(Supervisor(tmp_path), settings, **asked)
    return stack, said


def test_a_stack_whose_child_lost_its_port_starts_again(monkeypatch, settings, tmp_path):
    failures = [died(tmp_path, TAIL), PortLost(4319, "collector")]

    started = []
    stack, said = launched(monkeypatch, settings, tmp_path, failures, started)

    assert (stack, len(started)) == ("the stack", 3)
    assert sum("starting again on others" in line for line in said) == 2


def test_a_port_that_is_taken_meanwhile_is_not_chosen_again(monkeypatch, settings, tmp_path):
    wanted = settings.ports.otlp_http
    with socket.socket() as other:

        def start(supervisor, chosen, **_):
            if chosen.ports.otlp_http == wanted:
                other.bind(("127.0.0.1", wanted))
                other.listen()
                raise died(tmp_path, TAIL)
            return chosen

        monkeypatch.setattr(compose, "start", start)
        chosen = compose.launch(Supervisor(tmp_path), settings, strict=False, dashboard=False)

    assert chosen.ports.otlp_http != wanted
    assert settings.ports.otlp_http == wanted


@pytest.mark.parametrize(
    ("failures", "more", "tries"),
    [
        ([TAIL] * 9, {}, compose.TRIES),
        ([TAIL], {"strict": True}, 1),
        (["heddle: another process holds heddle.duckdb (PID 7)"], {}, 1),
        (["damaged; it is kept as x and a fresh file is in use\ndisk full"], {}, 1),
    ],
)
def test_nothing_else_is_tried_again_and_nothing_for_ever(
    monkeypatch, settings, tmp_path, failures, more, tries
):
    started = []

    with pytest.raises(ChildDied):
        launched(
            monkeypatch, settings, tmp_path, [died(tmp_path, t) for t in failures], started, **more
        )

    assert len(started) == tries


@pytest.mark.parametrize(
    "tail",
    [
        TAIL,
        "heddle: port 8600, wanted for the controller, is in use; choose another with --port",
        "Port 8501 is not available",
    ],
)
def test_what_each_child_says_of_a_lost_port_is_understood(tail):
    assert LOST.search(f"something\n{tail}\n")


def test_an_answer_from_another_process_is_not_the_childs(tmp_path, monkeypatch):
    with socket.socket() as other, Supervisor(tmp_path) as supervisor:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(compose, "answers", lambda url, trusted: True)
        supervisor.start("collector", ["--version"])
        with pytest.raises(PortLost, match=f"port {port}, free a moment ago"):
            compose._wait(supervisor, "collector", "http://x", port)


def test_a_strict_choice_names_the_taken_port_and_a_free_one_says_where_it_went(settings):
    said = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", settings.ports.queries))
        other.listen()
        with pytest.raises(PortInUse, match="HEDDLE_PORTS__QUERIES"):
            settle_ports(settings, strict=True, dashboard=False)
        chosen = settle_ports(settings, strict=False, dashboard=False, say=said.append)

    assert chosen.ports.queries != settings.ports.queries
    assert len(said) == 1


def test_stacks_of_several_processes_look_for_engine_ports_in_different_places(
    settings, monkeypatch
):
    seen = set()
    for pid in (1000, 1001, 1002):
        monkeypatch.setattr(compose.os, "getpid", lambda pid=pid: pid)
        seen.add(settle_ports(settings, strict=False, dashboard=False).ports.engines)
    strict = settle_ports(settings, strict=True, dashboard=False).ports.engines

    assert len(seen) == 3
    assert max(seen) < 32_768
    assert strict < 30_000 + 2_400


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"fleet.model": "Qwen3-15B"}, "model 'Qwen3-15B' .* choose one of .*Qwen3-14B"),
        ({"fleet.system": "b200"}, "system 'b200' .* choose one of h100_sxm, h200_sxm"),
        ({"host": "nowhere.invalid"}, "host 'nowhere.invalid' .* does not resolve"),
        ({"host": "192.0.2.1"}, "host '192.0.2.1' .* no address of this machine"),
    ],
)
def test_what_no_stack_can_run_with_is_said_before_anything_starts(tmp_path, flags, says):
    asked = load({"data": tmp_path, **flags})
    supervisor = Supervisor(tmp_path / "logs")

    with pytest.raises(AppError, match=says) as said:
        compose.launch(supervisor, asked, strict=True, dashboard=False)

    assert "\n" not in str(said.value)
    assert "profile URL" not in str(said.value)
    assert not supervisor.children


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    asked = load({"data": tmp_path / "file" / "data"})

    with pytest.raises(AppError, match=r"data folder .* cannot be written: .*--data"):
        compose.launch(Supervisor(tmp_path / "logs"), asked, strict=True, dashboard=False)


def test_an_address_that_is_none_does_not_answer():
    assert not compose.answers("http://[bad/health")
    assert not compose.answers("gpu1:30000/health")
    with pytest.raises(AppError, match="no engine answers at nonsense/health"):
        compose.reach(["nonsense"])


def test_nothing_listens_in_a_range_that_is_free():
    assert supervise.is_free(supervise.free_range(31_000, 3))
