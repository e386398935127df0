"""Versions appear whole, the switch is atomic, broken ones are refused while the older serves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heddle.models.errors import ArtifactError, RegistryError
from heddle.models.features import FEATURES
from heddle.models.history import GroupHistory
from heddle.models.length import LengthNet, export
from heddle.models.registry import CARD, META, WEIGHTS, Draft, Registry, load_active


def draft(seed: int = 0, *, accepted: bool = True) -> Draft:
    x = np.random.default_rng(seed).normal(5.0, 2.0, (30, len(FEATURES)))
    return Draft(
        weights=export([LengthNet(x, 3)]),
        fingerprint=f"{seed:016x}",
        accepted=accepted,
        because="accepted: better" if accepted else "refused: no better than group history",
        metrics={"spearman": 0.5 + seed / 100},
    )


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "predictors")


def spoil(registry: Registry, version: str) -> None:
    path = registry.folder / "versions" / version / WEIGHTS
    path.write_bytes(path.read_bytes()[:-20])


def test_history_serves_until_something_is_promoted(registry):
    registry.save(draft())
    assert registry.active() is None
    assert load_active(registry, GroupHistory()).version == "group-history"


def test_promote_and_roll_back_walk_the_same_path(registry):
    first, second = (registry.save(draft(seed)).version for seed in (1, 2))
    served = [registry.promote(v).version for v in (first, second)]
    assert served == [first, second]
    assert load_active(registry, GroupHistory()).version == second
    assert registry.rollback(who="ann", why="worse live") == first
    assert registry.rollback() is None
    assert load_active(registry, GroupHistory()).version == "group-history"
    with pytest.raises(RegistryError, match="group history serves already"):
        registry.rollback()
    deeds = [line["deed"] for line in registry.audit()]
    assert deeds == ["save", "save", "promote", "promote", "rollback", "rollback"]
    assert registry.audit()[4]["who"] == "ann"


def test_the_version_names_its_data_and_conventions_and_repeats(registry):
    once, again = registry.save(draft(3)), registry.save(draft(3))
    assert once.version.startswith("length-00000000-c1-")
    other = registry.save(replace(draft(3), metrics={"spearman": 0.9}))
    assert other.version != once.version
    assert once.created_ns <= again.created_ns
    assert {v.version for v in registry.list()} >= {once.version, other.version}


def test_a_refused_version_serves_only_by_force_and_the_audit_says_so(registry):
    version = registry.save(draft(4, accepted=False)).version
    with pytest.raises(RegistryError, match="no better than group history"):
        registry.promote(version)
    assert registry.active() is None
    registry.promote(version, force=True, who="ann", why="trying")
    assert registry.active() == version
    assert registry.audit()[-1]["deed"] == "promote-forced"


def test_a_broken_version_is_never_promoted_not_even_by_force(registry):
    version = registry.save(draft(5)).version
    spoil(registry, version)
    with pytest.raises(ArtifactError, match="missing or changed since training"):
        registry.promote(version, force=True)
    assert registry.active() is None


def test_when_the_active_version_breaks_the_one_before_it_serves_and_it_is_noted(registry):
    first, second = (registry.save(draft(seed)).version for seed in (6, 7))
    registry.promote(first)
    registry.promote(second)
    spoil(registry, second)
    predictor, refused = registry.serving(GroupHistory())
    assert predictor.version == first
    assert second in refused[0]
    assert registry.audit()[-1]["deed"] == "refused"
    spoil(registry, first)
    assert load_active(registry, GroupHistory()).version == "group-history"


def test_a_version_of_other_conventions_is_refused(registry):
    version = registry.save(draft(8)).version
    meta = registry.folder / "versions" / version / META
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"conventions": "0"}))
    with pytest.raises(ArtifactError, match="conventions 0"):
        registry.promote(version)


def test_a_crash_between_write_and_replace_leaves_the_old_one_serving(registry, monkeypatch):
    first, second = (registry.save(draft(seed)).version for seed in (9, 10))
    registry.promote(first)

    def crash(self: Path, target: Path) -> None:
        raise OSError("power gone")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(OSError, match="power gone"):
            registry.promote(second)
    assert Registry(registry.folder).active() == first


def test_an_unreadable_active_file_means_history(registry):
    registry.promote(registry.save(draft(11)).version)
    (registry.folder / "active.json").write_text("{")
    assert load_active(registry, GroupHistory()).version == "group-history"


@pytest.mark.parametrize("name", ["nothing", "../versions", ""])
def test_an_unknown_name_is_refused_with_those_there_are(registry, name):
    known = registry.save(draft(12)).version
    with pytest.raises(RegistryError, match=known if name == "nothing" else "plain name"):
        registry.get(name)


def test_the_card_comes_with_its_version(registry):
    version = registry.save(draft(13), "not for rewards").version
    assert registry.card(version) == f"# {version}\n\nnot for rewards"
    assert (registry.folder / "versions" / version / CARD).exists()
