"""Claims about the settings tree."""

from __future__ import annotations

import stat

import pytest

from heddle.app.compose import engine_template
from heddle.app.errors import AppError
from heddle.app.settings import load, token, token_in_file
from heddle.controller.clock import Clock


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("HEDDLE_DATA", "HEDDLE_COLLECTOR", "HEDDLE_CONTROLLER", "HEDDLE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_a_flag_beats_the_environment_and_the_environment_beats_the_file(tmp_path, monkeypatch):
    (tmp_path / "heddle.toml").write_text("[fleet]\ngpus = 2\nmodel = 'A'\n[ports]\nqueries = 1\n")
    monkeypatch.setenv("HEDDLE_FLEET__GPUS", "3")
    monkeypatch.setenv("HEDDLE_FLEET__MODEL", "B")

    settings = load({"fleet.gpus": 4, "data": None})

    assert (settings.fleet.gpus, settings.fleet.model, settings.ports.queries) == (4, "B", 1)


def test_addresses_follow_from_the_ports_unless_they_are_given(monkeypatch):
    monkeypatch.setenv("HEDDLE_COLLECTOR", "http://far:9")

    settings = load({"ports.controller": 7000, "host": "127.0.0.2"})

    assert settings.query_url == "http://far:9"
    assert settings.controller_url == "http://127.0.0.2:7000"


def test_the_collectors_own_addresses_are_https_where_it_has_a_certificate():
    settings = load({"collect.tls_certificate": "cert.pem", "collect.tls_key": "key.pem"})

    assert settings.query_url == "https://127.0.0.1:4319"
    assert settings.otlp_url == "https://127.0.0.1:4318"
    assert settings.controller_url == "http://127.0.0.1:8600"


@pytest.mark.parametrize(
    ("toml", "names"),
    [
        ("[fleet]\ngpus = 0\n", "fleet.gpus"),
        ("[fleet]\ngpu = 8\n", "fleet.gpu"),
        ("[fleet]\nseed = -1\n", "fleet.seed"),
        ("otlp = 'nonsense'\n", "otlp"),
        ("[ports]\ncontroller = 'x'\n", "ports.controller"),
    ],
)
def test_a_setting_that_does_not_fit_is_named_in_one_sentence(tmp_path, toml, names):
    (tmp_path / "heddle.toml").write_text(toml)

    with pytest.raises(AppError, match=names) as said:
        load()

    assert "\n" not in str(said.value)


def test_a_file_that_is_no_toml_is_said_so(tmp_path):
    (tmp_path / "heddle.toml").write_text("gpus = = 3")

    with pytest.raises(AppError, match="settings cannot be read"):
        load()


def test_the_token_is_made_once_and_only_its_owner_reads_it(tmp_path):
    settings = load({"data": tmp_path / "d"})

    before = token(settings)
    first, second = token_in_file(settings), token_in_file(settings)

    assert before == ""
    assert first == second == token(settings)
    assert len(first) >= 32
    assert stat.S_IMODE(settings.token_path.stat().st_mode) == 0o600


def test_engines_send_spans_where_the_controller_does_when_that_is_asked_for():
    asked = load({"fleet.engine_spans": True, "ports.otlp_http": 7318})

    assert engine_template(asked, Clock(0, 1.0))[-2:] == ["--otlp-endpoint", asked.otlp_url]
    assert "--otlp-endpoint" not in engine_template(load({}), Clock(0, 1.0))
