"""Claims about the command line: help has examples, mistakes are sentences."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from typer.main import get_command

from heddle.app.cli import COMMANDS, EXTRAS, SENTENCES, _is_sentence, build
from heddle.app.commands import connect
from heddle.collector.errors import CollectorUnreachable
from heddle.controller.core.policies import UnknownPolicy


def heddle(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "heddle.app.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        check=False,
    )


def test_every_command_says_what_it_does_and_shows_an_example(capsys):
    app = build()
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            app([name, "--help"])
        said = capsys.readouterr().out
        assert f"Examples:\n    heddle {name}" in said, name


@pytest.mark.parametrize("name", ["fleet", "promote", "rollback", "switch"])
def test_every_command_whose_change_is_audited_takes_who_and_why(name):
    spelled = {o for p in get_command(build([name])).commands[name].params for o in p.opts}
    assert {"--who", "--why"} <= spelled


def test_a_user_id_without_a_name_still_says_who_asks(monkeypatch):
    import os
    import pwd

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    assert connect.asker("ann") == "ann"
    assert connect.asker() == f"uid {os.getuid()}"


def examples_of(name, capsys):
    with pytest.raises(SystemExit):
        build([name])([name, "--help"])
    told = capsys.readouterr().out.partition("Examples:\n")[2]
    return [line.strip() for line in told.splitlines() if line.strip().startswith("heddle ")]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_of_the_help_is_a_command_line_that_parses(name, capsys):
    for line in examples_of(name, capsys):
        words = shlex.split(re.split(r" [|>] ", line)[0])
        command = get_command(build([name])).commands[words[1]]
        assert command.make_context(name, words[2:]).params, line


def test_the_rooms_own_errors_are_sentences_and_others_are_defects():
    assert _is_sentence(CollectorUnreachable("x"))
    assert _is_sentence(UnknownPolicy("order", "sjf"))
    assert not _is_sentence(KeyError("x"))


def test_every_error_tree_the_command_line_knows_exists():
    from importlib import import_module

    for module, name in SENTENCES.items():
        assert issubclass(getattr(import_module(module), name), Exception)


def test_every_extra_is_one_that_the_package_offers():
    from importlib.metadata import metadata

    offered = set(metadata("heddle-rollout").get_all("Provides-Extra") or ())
    assert set(EXTRAS.values()) <= offered


def test_a_mistake_is_one_sentence_on_stderr_and_exit_code_2(tmp_path):
    ended = heddle("replay", "nowhere.parquet", cwd=tmp_path)

    assert ended.returncode == 2
    assert ended.stderr.strip() == "heddle: there is no file nowhere.parquet"
    assert ended.stdout == ""


def test_a_missing_library_names_the_extra_that_brings_it(tmp_path):
    code = "import sys; sys.modules['typer'] = None; from heddle.app.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.returncode == 2
    assert "pip install 'heddle-rollout[serve]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_control_opens_only_the_doors_it_is_told_to(monkeypatch, tmp_path):
    from heddle.app.commands import control
    from heddle.app.supervise import free_port
    from heddle.controller import service

    served = []
    monkeypatch.setattr(service, "serve", served.append)
    control.run(port=free_port(), data=tmp_path)
    control.run(
        port=free_port(), data=tmp_path, allow_host=["heddle.cluster"], open_registration=True
    )

    shut, opened = served
    assert (shut.allowed_hosts, shut.open_registration) == (frozenset(), False)
    assert (opened.allowed_hosts, opened.open_registration) == ({"heddle.cluster"}, True)


def test_control_opens_each_door_of_the_collector_with_the_token_of_that_door(
    monkeypatch, tmp_path
):
    from heddle.app.commands import control
    from heddle.app.supervise import free_port
    from heddle.controller import service

    served = []
    monkeypatch.setattr(service, "serve", served.append)
    (tmp_path / "asks").write_text("asks-secret\n")
    monkeypatch.setenv("HEDDLE_COLLECT__INGEST_TOKEN", "sends-secret")
    monkeypatch.setenv("HEDDLE_COLLECT__QUERY_TOKEN_FILE", str(tmp_path / "asks"))
    control.run(port=free_port(), data=tmp_path)

    assert (served[0].collector_token, served[0].query_token) == ("sends-secret", "asks-secret")
    assert "secret" not in repr(served[0])
