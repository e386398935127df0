"""Which trained predictors are there, which one serves, and who changed that?

A folder: `versions/<version>/{weights.npz,meta.json,card.md,gate.json}`, `active.json` (what serves
and what served before it) and `audit.jsonl`. A version appears whole or not at all, the switch is
one atomic replace, and whatever is broken is refused with a sentence while the older one serves.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from heddle.collector.conventions import VERSION as CONVENTIONS
from heddle.models import serve
from heddle.models.errors import ArtifactError, ModelsError, RegistryError
from heddle.models.history import GroupHistory
from heddle.models.predictor import Predictor

WEIGHTS: Final = "weights.npz"
META: Final = "meta.json"
CARD: Final = "card.md"
GATE: Final = "gate.json"


@dataclass(frozen=True, slots=True)
class Version:
    """One trained predictor: what it was made from, how it did, what the gate said."""

    version: str
    fingerprint: str
    """Of the data it was trained on."""
    conventions: str
    accepted: bool
    because: str
    metrics: Mapping[str, float]
    """Held-out means over the steps, by metric name."""
    created_ns: int
    weights_sha256: str
    trained: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments and sizes of its training."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What training hands over to become a version."""

    weights: serve.Weights
    fingerprint: str
    accepted: bool
    because: str
    metrics: Mapping[str, float]
    trained: Mapping[str, Any] = field(default_factory=dict[str, Any])
    table: Sequence[Mapping[str, Any]] = ()
    """The gate's comparisons, one row a baseline, step and metric."""


class Registry:
    """The versions of one folder; made on first use. Safe for one writer and many readers."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._versions = self.folder / "versions"
        self._versions.mkdir(parents=True, exist_ok=True)

    def list(self) -> list[Version]:
        """Newest first; a version whose meta.json cannot be read is left out."""
        found: list[Version] = []
        for path in self._versions.iterdir():
            try:
                found.append(self.get(path.name))
            except RegistryError:
                continue
        return sorted(found, key=lambda v: (-v.created_ns, v.version))

    def get(self, version: str) -> Version:
        """One version, or RegistryError naming those there are."""
        try:
            stored = json.loads(self._path(version, META).read_text())
            return Version(**stored)
        except (OSError, ValueError, TypeError) as error:
            known = ", ".join(sorted(p.name for p in self._versions.iterdir())) or "none yet"
            message = f"no readable predictor version {version!r}; there are: {known}"
            raise RegistryError(message) from error

    def card(self, version: str) -> str:
        """The model card, Markdown."""
        return self._path(self.get(version).version, CARD).read_text()

    def table(self, version: str) -> list[dict[str, Any]]:
        """The gate's comparisons of that version; empty for one that was saved without."""
        try:
            return json.loads(self._path(self.get(version).version, GATE).read_text())
        except (OSError, ValueError):
            return []

    def save(self, draft: Draft, card: str = "") -> Version:
        """Add a version; training the same data to the same weights again gives the same one."""
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".new-") as made:
            new = Path(made) / "version"
            new.mkdir()
            serve.save(draft.weights, new / WEIGHTS)
            version = _version_of(draft, _sha256(new / WEIGHTS))
            (new / META).write_text(json.dumps(asdict(version), indent=1))
            (new / CARD).write_text(f"# {version.version}\n\n{card}")
            (new / GATE).write_text(json.dumps([dict(row) for row in draft.table]))
            place = self._versions / version.version
            if self._whole(version.version):
                return self.get(version.version)
            shutil.rmtree(place, ignore_errors=True)
            new.rename(place)
        self._note("save", version.version, draft.because)
        return version

    def active(self) -> str | None:
        """The version that should serve; None for group history."""
        return next(iter(self._stack()), None)

    def promote(
        self, version: str, *, who: str = "", why: str = "", force: bool = False
    ) -> Version:
        """Let a version serve. Refused: a broken one always, one the gate refused without force."""
        wanted = self.get(version)
        self.weights(version)
        if not (wanted.accepted or force):
            message = (
                f"{version} may not serve, {wanted.because}; force=True overrides and is noted"
            )
            raise RegistryError(message)
        self._put([version, *(v for v in self._stack() if v != version)])
        self._note("promote" if wanted.accepted else "promote-forced", version, why, who)
        return wanted

    def rollback(self, *, who: str = "", why: str = "") -> str | None:
        """Back to what served before; None means group history. RegistryError when nothing was
        promoted."""
        stack = self._stack()
        if not stack:
            message = "nothing was promoted, group history serves already; promote a version first"
            raise RegistryError(message)
        self._put(stack[1:])
        now = self.active()
        self._note("rollback", now or GroupHistory.version, why, who)
        return now

    def weights(self, version: str) -> serve.Weights:
        """The checked weights of a version; ArtifactError says what is wrong with them."""
        meta = self.get(version)
        if meta.conventions != CONVENTIONS:
            theirs = meta.conventions
            message = f"{version} has conventions {theirs}, these are {CONVENTIONS}; train again"
            raise ArtifactError(message)
        path = self._path(version, WEIGHTS)
        if not path.is_file() or _sha256(path) != meta.weights_sha256:
            message = f"the weights of {version} are missing or changed since training; train again"
            raise ArtifactError(message)
        return serve.load(path)

    def serving(self, history: GroupHistory) -> tuple[Predictor, list[str]]:
        """What serves, and a sentence for each newer version that was refused as broken."""
        refused: list[str] = []
        for version in self._stack():
            try:
                return serve.Learned(self.weights(version), history, version), refused
            except ModelsError as error:
                refused.append(str(error))
                self._note("refused", version, str(error))
        return history, refused

    def audit(self) -> list[dict[str, Any]]:
        """Every save, promotion, rollback and refusal, oldest first."""
        path = self.folder / "audit.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def _whole(self, version: str) -> bool:
        try:
            self.weights(version)
        except ModelsError:
            return False
        return True

    def _path(self, version: str, name: str) -> Path:
        if not version or Path(version).name != version:
            message = f"{version!r} is no version; a version is a plain name"
            raise RegistryError(message)
        return self._versions / version / name

    def _stack(self) -> list[str]:
        try:
            stored: Any = json.loads((self.folder / "active.json").read_text())
            return [str(version) for version in stored["serving"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def _put(self, stack: Sequence[str]) -> None:
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".active-")
        with os.fdopen(handle, "w") as file:
            json.dump({"serving": list(stack)}, file)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(self.folder / "active.json")

    def _note(self, deed: str, version: str, why: str, who: str = "") -> None:
        line = {"at_ns": time.time_ns(), "deed": deed, "version": version, "who": who, "why": why}
        with (self.folder / "audit.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def load_active(registry: Registry, history: GroupHistory) -> Predictor:
    """The predictor that serves: the newest promoted one that is whole, else group history."""
    return registry.serving(history)[0]


def _version_of(draft: Draft, sha256: str) -> Version:
    told = json.dumps({"weights": sha256, "metrics": dict(draft.metrics)}, sort_keys=True)
    name = (
        f"length-{draft.fingerprint[:8]}-c{CONVENTIONS}-"
        f"{hashlib.sha256(told.encode()).hexdigest()[:6]}"
    )
    return Version(
        version=name,
        fingerprint=draft.fingerprint,
        conventions=CONVENTIONS,
        accepted=draft.accepted,
        because=draft.because,
        metrics=dict(draft.metrics),
        created_ns=time.time_ns(),
        weights_sha256=sha256,
        trained=dict(draft.trained),
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
