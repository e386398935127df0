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
from heddle.models.registry import CARD, GATE, META, WEIGHTS, Draft, Registry, load_active


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


def test_the_audit_names_who_trained_a_version(registry):
    registry.save(draft(25), who="ann")
    assert [(line["deed"], line["who"]) for line in registry.audit()] == [("save", "ann")]


def test_the_version_names_its_data_and_conventions_and_repeats(registry):
    made = draft(3)
    once, again = registry.save(made), registry.save(made)
    assert once.version.startswith("length-00000000-c1-")
    assert again == once
    other = registry.save(replace(made, metrics={"spearman": 0.9}))
    assert {v.version for v in registry.list()} == {once.version, other.version}
    assert len(registry.list()) == 2


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


@pytest.mark.parametrize(
    "wrong",
    [
        {"created_ns": "soon"},
        {"metrics": [1]},
        {"metrics": {"spearman": None}},
        {"accepted": "no"},
        {"because": None},
        {"fingerprint": 3},
        {"trained": "all"},
        {"version": "another"},
    ],
)
def test_a_version_whose_facts_are_of_another_kind_is_left_out_and_never_serves(registry, wrong):
    whole, spoilt = (registry.save(draft(seed)).version for seed in (14, 15))
    meta = registry.folder / "versions" / spoilt / META
    meta.write_text(json.dumps(json.loads(meta.read_text()) | wrong))
    assert [v.version for v in registry.list()] == [whole]
    with pytest.raises(RegistryError, match=f"no readable predictor version '{spoilt}'"):
        registry.promote(spoilt, force=True)


@pytest.mark.parametrize("said", ['{"serving": "abc"}', '{"serving": {"a": 1}}', "[]", "null"])
def test_what_serves_is_a_list_of_names_or_history(registry, said):
    (registry.folder / "active.json").write_text(said)
    assert registry.active() is None


def test_a_torn_line_of_the_audit_hides_no_other_and_swallows_none_after_it(registry):
    version = registry.save(draft(16)).version
    with (registry.folder / "audit.jsonl").open("ab") as file:
        file.write(b'[]\n{"at_ns": 1}\n\xff\n{"at_ns": 2, "deed": "prom')
    registry.promote(version)
    assert [line["deed"] for line in registry.audit()] == ["save", "promote"]


def test_a_card_and_a_table_that_cannot_be_read_say_so_and_the_version_serves_on(registry):
    version = registry.save(draft(17), "text").version
    folder = registry.folder / "versions" / version
    (folder / CARD).unlink()
    (folder / GATE).write_text("[1]")
    assert "cannot be read" in registry.card(version)
    assert registry.table(version) == []
    assert registry.promote(version).version == version


def test_what_cannot_be_audited_does_not_happen(registry, monkeypatch):
    version = registry.save(draft(18, accepted=False)).version
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_note", _full)
        with pytest.raises(OSError, match="no space"):
            registry.promote(version, force=True)
    assert registry.active() is None
    assert [path.name for path in registry.folder.glob(".active-*")] == []


def test_a_broken_version_on_a_full_disk_still_gives_way_and_is_noted_once(registry, monkeypatch):
    version = registry.save(draft(19)).version
    registry.promote(version)
    spoil(registry, version)
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_note", _full)
        assert registry.serving(GroupHistory())[0].version == "group-history"
    again = Registry(registry.folder)
    told = [again.serving(GroupHistory())[1] for _ in range(3)]
    assert told[0] == told[2] != []
    assert [line["deed"] for line in again.audit()].count("refused") == 1


def test_the_same_version_saved_by_two_at_once_is_there_once(registry, monkeypatch):
    made, rename = draft(20), Path.rename

    def late(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        Registry(registry.folder).save(made)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    version = registry.save(made).version
    assert [v.version for v in registry.list()] == [version]
    assert [line["deed"] for line in registry.audit()] == ["save"]


@pytest.mark.parametrize("lies", ["file", "link"])
def test_what_lies_in_the_place_of_a_version_gives_way_to_it(registry, tmp_path, lies):
    made = draft(21)
    version = registry.save(made).version
    place = registry.folder / "versions" / version
    place.rename(tmp_path / "away")
    place.write_text("x") if lies == "file" else place.symlink_to(tmp_path / "nowhere")
    assert registry.save(made).version == version
    assert registry.promote(version).version == version


def test_where_nothing_can_be_kept_it_is_one_sentence_and_leaves_nothing(registry, monkeypatch):
    (registry.folder / "plain").write_text("x")
    with pytest.raises(RegistryError, match="cannot be kept in"):
        Registry(registry.folder / "plain")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", _full)
        with pytest.raises(RegistryError, match=r"cannot be kept in .* \(no space left\)"):
            registry.save(draft(22))
    assert registry.list() == []
    assert list(registry.folder.glob(".new-*")) == []


def _full(*_said: str) -> None:
    raise OSError("no space left")
