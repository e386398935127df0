"""How long do decode, prefill, a launch and a move take, as far as the planner believes?

The fitted closed forms of `profiles/*.json`, in seconds and tokens, or of a file that `heddle
profile` measured. The shipped ones are estimates (see `profiles/README.md`); the emulated engine
never reads any of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

SYSTEMS: Final = ("h100_sxm", "h200_sxm")

# SGLang start outside its weights: imports about 21 s (a public B200 log, sglang.md 5a), server and
# graph capture about 15 s. No public figure exists for 8-32B models: `heddle profile` measures.
START_FIXED_S: Final = 36.0
# That log loads 122 GB of weights in 31 s with warm caches: 4 GB/s an engine, whatever its degree.
DISK_BYTES_PER_S: Final = 4e9
# Weights kept on the host return over PCIe 5 x16, about 40 of its 64 GB/s; half a second for the
# kv_cache and cuda_graph tags and the HTTP round trips.
HOST_BYTES_PER_S: Final = 40e9
WAKE_FIXED_S: Final = 0.5
SLEEP_FIXED_S: Final = 0.5
# A move on stock SGLang is a re-prefill on the target plus abort, decision and resend.
MOVE_FIXED_S: Final = 0.01


class LatencyError(ValueError):
    """Root of what can go wrong with a profile; its text is one sentence for a person."""


class UnknownSystem(LatencyError):
    """No profile file for that system."""

    def __init__(self, system: str) -> None:
        super().__init__(
            f"no latency profile for system {system!r}; known systems are {', '.join(SYSTEMS)} "
            "(or the .json file that `heddle profile URL` measured)"
        )


class UnreadableProfile(LatencyError):
    """A file that should be a profile is none."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is no profile of `heddle profile`: {why}")


class UnknownModel(LatencyError):
    """The system's profile lacks that model."""

    def __init__(self, system: str, model: str, known: list[str]) -> None:
        super().__init__(
            f"no latency profile for model {model!r} on {system}; known models are "
            f"{', '.join(known)} (or measure one with `heddle profile URL`)"
        )


class UnknownDegree(LatencyError):
    """The model was not profiled at that degree."""

    def __init__(self, degree: int, known: list[int]) -> None:
        super().__init__(
            f"no latency law for degree {degree}; known degrees are {', '.join(map(str, known))}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """One engine of `degree` GPUs: seconds from tokens; a_s is one lone token's decode time."""

    degree: int
    a_s: float
    b_s: float
    """Seconds an iteration grows by each running sequence."""
    c_s: float
    """Seconds an iteration grows by each token of context of the running sequences."""
    p0_s: float
    p1_s: float
    p2_s: float
    kv_tokens: int
    launch_s: float
    """From the command to serving: imports, weights from disk, graph capture."""
    wake_s: float
    """A sleeping engine's weights back from the host."""
    sleep_s: float
    load_s: float
    """New weights from disk into a live engine."""
    storage: str = ""
    """Of HiCache, from which `fetch_token_s` was measured."""
    fetch_token_s: float | None = None
    """Seconds a token that the engine reads from there; None: nobody measured it."""

    def decode_s(self, batch: float, context_tokens_sum: float) -> float:
        """One iteration of `batch` sequences whose contexts sum to that; 0 for an empty batch."""
        if batch <= 0:
            return 0.0
        return self.a_s + self.b_s * batch + self.c_s * context_tokens_sum

    def prefill_s(self, new_tokens: float, prefix_tokens: float = 0.0) -> float:
        """Prefill of `new` tokens after a cached prefix; 0 when nothing is new."""
        if new_tokens <= 0:
            return 0.0
        quadratic = new_tokens * (prefix_tokens + new_tokens / 2)
        return self.p0_s + self.p1_s * new_tokens + self.p2_s * quadratic

    def move_s(self, context_tokens: float) -> float:
        """A trajectory with that context arrives on this engine: re-prefill and the hand-over."""
        return MOVE_FIXED_S + self.prefill_s(context_tokens)

    def interference(self, batch: float, context_tokens_sum: float) -> float:
        """How many times slower a token is than a lone one's: the paper's F."""
        return self.decode_s(batch, context_tokens_sum) / (self.a_s + self.b_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The laws of one model on one system, by degree."""

    system: str
    model: str
    kv_bytes_per_token: int
    weight_bytes: int
    degrees: Mapping[int, Law]
    source: str

    def law(self, degree: int) -> Law:
        """The law at that degree, or a sentence naming the degrees there are."""
        try:
            return self.degrees[degree]
        except KeyError:
            raise UnknownDegree(degree, sorted(self.degrees)) from None


def known_models(system: str) -> list[str]:
    """Models profiled on that system, sorted."""
    return sorted(_document(system)["models"])


@lru_cache(maxsize=32)
def load_profile(system: str, model: str) -> Profile:
    """A shipped or a measured profile; `model` may carry an organisation ("Qwen/Qwen3-14B")."""
    models = _document(system)["models"]
    name = model.rsplit("/", 1)[-1]
    if name not in models:
        raise UnknownModel(system, model, known_models(system))
    entry = models[name]
    laws = {int(d): _law(int(d), row, entry["weight_bytes"]) for d, row in entry["degrees"].items()}
    return Profile(
        system=system,
        model=name,
        kv_bytes_per_token=entry["kv_bytes_per_token"],
        weight_bytes=entry["weight_bytes"],
        degrees=MappingProxyType(dict(sorted(laws.items()))),
        source=_document(system)["source"],
    )


@lru_cache(maxsize=8)
def _document(system: str) -> dict[str, Any]:
    if is_measured(system):
        return _measured(Path(system))
    if system not in SYSTEMS:
        raise UnknownSystem(system)
    return json.loads((files("heddle.models.profiles") / f"{system}.json").read_text("utf-8"))


def is_measured(system: str) -> bool:
    """Whether it names a file of `heddle profile`."""
    return system.endswith(".json")


def _measured(path: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableProfile(path, str(error)) from error
    if not isinstance(found, dict) or "models" not in found:
        raise UnreadableProfile(path, "it has no models")
    return found


def _law(degree: int, row: Mapping[str, Any], weight_bytes: int) -> Law:
    decode, prefill, share = row["decode_ms"], row["prefill_ms"], weight_bytes / degree
    measured = row.get("times_s", {})
    load_s = measured.get("load_s", weight_bytes / DISK_BYTES_PER_S)
    fetch = row.get("fetch", {})
    return Law(
        degree=degree,
        a_s=decode["a"] / 1e3,
        b_s=decode["b"] / 1e3,
        c_s=decode["c"] / 1e6,  # the file's c is ms per thousand tokens of context
        p0_s=prefill["p0"] / 1e3,
        p1_s=prefill["p1"] / 1e3,
        p2_s=prefill["p2"] / 1e3,
        kv_tokens=row["kv_capacity_tokens"],
        launch_s=measured.get("launch_s", START_FIXED_S + load_s),
        wake_s=measured.get("wake_s", WAKE_FIXED_S + share / HOST_BYTES_PER_S),
        sleep_s=measured.get("sleep_s", SLEEP_FIXED_S),
        load_s=load_s,
        storage=fetch.get("storage", ""),
        fetch_token_s=fetch["ms_per_token"] / 1e3 if fetch else None,
    )
