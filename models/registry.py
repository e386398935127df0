"""Which trained predictors are there, which one serves, and who changed that?

A folder: `versions/<version>/{weights.npz,meta.json,card.md,gate.json}`, `active.json` (what serves
and what served before it) and `audit.jsonl`. A version appears whole or not at all, the switch is
one atomic replace, and whatever is broken is refused with a sentence while the older one serves.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
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
        self._refused: set[tuple[str, str]] = set()
        with _kept_in(self.folder):
            self._versions.mkdir(parents=True, exist_ok=True)

    def list(self) -> list[Version]:
        """Newest first; a version whose meta.json cannot be read is left out."""
        found: list[Version] = []
        for name in self._names():
            try:
                found.append(self.get(name))
            except RegistryError:
                continue
        return sorted(found, key=lambda v: (-v.created_ns, v.version))

    def get(self, version: str) -> Version:
        """One version, or RegistryError naming those there are."""
        try:
            return _read(version, self._path(version, META))
        except (OSError, ValueError, TypeError, KeyError) as error:
            known = ", ".join(self._names()) or "none yet"
            message = f"no readable predictor version {version!r}; there are: {known}"
            raise RegistryError(message) from error

    def card(self, version: str) -> str:
        """The model card, Markdown; a sentence in its place where it cannot be read."""
        path = self._path(self.get(version).version, CARD)
        try:
            return path.read_text()
        except (OSError, ValueError) as error:
            return f"# {version}\n\nIts card cannot be read ({error}).\n"

    def table(self, version: str) -> list[dict[str, Any]]:
        """The gate's comparisons of that version; empty where there are none to read."""
        path = self._path(self.get(version).version, GATE)
        try:
            rows: Any = json.loads(path.read_text())
        except (OSError, ValueError):
            return []
        whole = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
        return rows if whole else []

    def save(self, draft: Draft, card: str = "", who: str = "") -> Version:
        """Add what `who` trained; the same data trained to the same weights give the same one."""
        with (
            _kept_in(self.folder),
            tempfile.TemporaryDirectory(dir=self.folder, prefix=".new-") as made,
        ):
            new = Path(made) / "version"
            new.mkdir()
            serve.save(draft.weights, new / WEIGHTS)
            version = _version_of(draft, _sha256(new / WEIGHTS))
            (new / META).write_text(json.dumps(asdict(version), indent=1))
            (new / CARD).write_text(f"# {version.version}\n\n{card}")
            (new / GATE).write_text(json.dumps([dict(row) for row in draft.table]))
            if self._whole(version.version) or not self._placed(new, version.version):
                return self.get(version.version)
            self._note("save", version.version, draft.because, who)
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
        stack = [version, *(v for v in self._stack() if v != version)]
        deed = "promote" if wanted.accepted else "promote-forced"
        self._put(stack, deed, version, why, who)
        return wanted

    def rollback(self, *, who: str = "", why: str = "") -> str | None:
        """Back to what served before; None means group history. RegistryError when nothing was
        promoted."""
        stack = self._stack()
        if not stack:
            message = "nothing was promoted, group history serves already; promote a version first"
            raise RegistryError(message)
        now = next(iter(stack[1:]), None)
        self._put(stack[1:], "rollback", now or GroupHistory.version, why, who)
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
                self._note_refused(version, str(error))
        return history, refused

    def audit(self) -> list[dict[str, Any]]:
        """Every save, promotion, rollback and refusal, oldest first; a line torn by a crash or a
        full disk is left out."""
        path = self.folder / "audit.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [deed for line in lines if (deed := _deed(line))]

    def _names(self) -> Sequence[str]:
        try:
            return sorted(path.name for path in self._versions.iterdir())
        except OSError:
            return []

    def _whole(self, version: str) -> bool:
        try:
            self.weights(version)
        except ModelsError:
            return False
        return True

    def _placed(self, new: Path, version: str) -> bool:
        """Put there by us, in the place of what may lie there broken; False where another process
        put the same version there first."""
        place = self._versions / version
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
        elif place.is_symlink() or place.exists():
            place.unlink()
        try:
            new.rename(place)
        except OSError:
            if self._whole(version):
                return False
            raise
        return True

    def _path(self, version: str, name: str) -> Path:
        if not version or Path(version).name != version:
            message = f"{version!r} is no version; a version is a plain name"
            raise RegistryError(message)
        return self._versions / version / name

    def _stack(self) -> list[str]:
        try:
            stored: Any = json.loads((self.folder / "active.json").read_text())["serving"]
        except (OSError, ValueError, KeyError, TypeError):
            return []
        return [v for v in stored if isinstance(v, str)] if isinstance(stored, list) else []

    def _put(self, stack: Sequence[str], *deed: str) -> None:
        """Noted before it holds: what cannot be audited does not happen."""
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".active-")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({"serving": list(stack)}, file)
                file.flush()
                os.fsync(file.fileno())
            self._note(*deed)
            Path(name).replace(self.folder / "active.json")
        finally:
            Path(name).unlink(missing_ok=True)

    def _note_refused(self, version: str, why: str) -> None:
        """Once a reason, and where the disk allows: whoever predicts must not fail for it."""
        if (version, why) in self._refused:
            return
        self._refused.add((version, why))
        with contextlib.suppress(OSError):
            self._note("refused", version, why)

    def _note(self, deed: str, version: str, why: str, who: str = "") -> None:
        line = {"at_ns": time.time_ns(), "deed": deed, "version": version, "who": who, "why": why}
        path = self.folder / "audit.jsonl"
        torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
        with path.open("a") as file:
            file.write("\n" * torn + json.dumps(line) + "\n")


def load_active(registry: Registry, history: GroupHistory) -> Predictor:
    """The predictor that serves: the newest promoted one that is whole, else group history."""
    return registry.serving(history)[0]


KINDS: Final[Mapping[str, type]] = {
    "version": str, "fingerprint": str, "conventions": str, "accepted": bool, "because": str,
    "metrics": dict, "created_ns": int, "weights_sha256": str, "trained": dict,
}  # fmt: skip
"""Of the fields of a version."""


@contextlib.contextmanager
def _kept_in(folder: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        message = f"predictors cannot be kept in {folder} ({error}); name a folder that has room"
        raise RegistryError(message) from error


def _read(version: str, path: Path) -> Version:
    """What meta.json says, with every field of its kind: it may have been edited or cut off."""
    kept = Version(**json.loads(path.read_text()))
    wrong = [name for name, kind in KINDS.items() if not isinstance(getattr(kept, name), kind)]
    told: dict[str, Any] = {} if wrong else dict(kept.metrics)
    if (
        wrong
        or not all(isinstance(v, int | float) for v in told.values())
        or kept.version != version
    ):
        raise ValueError(", ".join(wrong) or "metrics or version")
    return kept


def _deed(line: bytes) -> dict[str, Any]:
    """A line of the audit; empty where it is none."""
    try:
        said: Any = json.loads(line)
    except ValueError:
        return {}
    names = ("deed", "version", "who", "why")
    if not isinstance(said, dict) or not isinstance(said.get("at_ns"), int):
        return {}
    return said if all(isinstance(said.get(name), str) for name in names) else {}


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
