"""Whose step is this request, and which one?

The first hit of a documented order wins; a request that says nothing is an anonymous trajectory of
one step. Nothing is guessed from the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

DEFAULT_RUN: Final = "default"
# What OpenAI clients send when they have no key: not a session id.
PLACEHOLDER_KEYS: Final = frozenset({"", "EMPTY", "empty", "none", "None", "dummy", "token"})
_PATH: Final = re.compile(r"^/t/(?P<id>[^/]+)(?P<rest>/.*)$")
# As Agent Lightning's gateway has it, which puts more around it.
_ATTEMPT: Final = re.compile(
    r"^(?:/proxy)?/rollout/(?P<id>[^/]+)/attempt/(?P<n>[^/]+)"
    r"(?:/mode/[^/]+/openai)?(?P<rest>/.*)$"
)
_PREFIXES: Final = ("/t/", "/rollout/", "/proxy/")
_LINEAGE: Final = re.compile(r"^(?P<id>.+)-(?P<step>\d{1,6})$")
_REPETITION: Final = re.compile(r"^(?P<group>.+)_\d{1,6}$")
_TRACEPARENT: Final = re.compile(r"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}$")
MAX_ID: Final = 512


class Whose(NamedTuple):
    """What a request says of itself; `source` names the rule that found the trajectory."""

    run: str
    trajectory: str
    source: str
    rollout: str | None = None
    group: str | None = None
    sample: int | None = None
    task: str | None = None
    step: int | None = None
    final: bool = False
    trace: tuple[str, str] | None = None
    """Trace id and parent span id of a `traceparent`."""

    @property
    def is_anonymous(self) -> bool:
        """One step, nobody's."""
        return self.source in ("anonymous", "ambiguous")


class Request(NamedTuple):
    """Headers in lower case, the path as it came, the parsed head of the body."""

    headers: Mapping[str, str]
    path: str
    body: Mapping[str, Any]
    api_keys: frozenset[str] = frozenset()


def strip_prefix(path: str) -> str:
    """The engine's path of `/t/{id}/v1/...` and `/rollout/{id}/attempt/{n}/...`."""
    if not path.startswith(_PREFIXES):
        return path
    found = _PATH.match(path) or _ATTEMPT.match(path)
    return found["rest"] if found else path


def resolve(request: Request) -> Whose:
    """Who it is, by the first rule that finds an id."""
    source, trajectory = _named(request)
    step = None
    if source == "rid":
        lineage = _LINEAGE.match(str(request.body.get("rid")))
        step = int(lineage["step"]) if lineage else None
    told, alone = _told(request), request.headers.get
    said = _number(told("x-heddle-step", "step") or alone("x-turn-id"))
    # In the order of its fields: every request makes one, and names double its price.
    return Whose(
        told("x-heddle-run", "run") or DEFAULT_RUN,
        trajectory,
        source,
        told("x-heddle-rollout-id", "rollout_id"),
        told("x-heddle-group-id", "group_id")
        or alone("x-instance-id")
        or _group_in(trajectory, source),
        _number(told("x-heddle-sample-index", "sample_index")),
        told("x-heddle-task", "task"),
        said if said is not None else step,
        (told("x-heddle-final", "final") or "").lower() in {"1", "true"},
        parse_trace(alone("traceparent")),
    )


def _told(request: Request) -> Callable[[str, str], str | None]:
    """What is said under a header, else under a key of the body's `heddle` or `metadata`."""
    headers = request.headers
    parts = [p for name in _PARTS if isinstance(p := request.body.get(name), Mapping)]

    def in_header(header: str, _: str) -> str | None:
        return _spelled(headers.get(header))

    def anywhere(header: str, key: str) -> str | None:
        return _spelled(headers.get(header)) or _first(parts, key)

    return anywhere if parts else in_header


_PARTS: Final = ("heddle", "metadata")


def _first(parts: Sequence[Mapping[str, Any]], key: str) -> str | None:
    for part in parts:
        value = part.get(key)
        if isinstance(value, str | int) and value != "":
            return str(value)[:MAX_ID]
    return None


def _group_in(trajectory: str, source: str) -> str | None:
    """SkyRL's sessions are `{instance}_{repetition}`: what stands before is the group."""
    found = _REPETITION.match(trajectory) if source == "X-Session-Id" else None
    return found["group"] if found else None


def _named(request: Request) -> tuple[str, str]:
    """The rule that found an id, and the id."""
    for name, rule in RULES:
        found = rule(request)
        if found:
            return name, found[:MAX_ID]
    return "anonymous", f"anon-{uuid4().hex}"


def _header(name: str) -> Callable[[Request], str | None]:
    return lambda request: _spelled(request.headers.get(name))


def _spelled(value: str | None) -> str | None:
    """Clients that let only ASCII into a header spell the rest as RFC 8187 does."""
    if value is None or not value.startswith("UTF-8''"):
        return value
    return unquote(value[7:])


def _field(*path: str) -> Callable[[Request], str | None]:
    def rule(request: Request) -> str | None:
        value: Any = request.body
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None

    return rule


def _path_id(request: Request) -> str | None:
    found = _PATH.match(request.path)
    if found:
        return found["id"]
    found = _ATTEMPT.match(request.path)
    return f"{found['id']}.{found['n']}" if found else None


def _bearer(request: Request) -> str | None:
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    value = value.strip()
    if scheme.lower() != "bearer" or value in PLACEHOLDER_KEYS or value in request.api_keys:
        return None
    # A key of OpenAI's form is a key, except AReaL's, which is made for one session.
    return None if value.startswith("sk-") and not value.startswith("sk-sess-") else value


def _rid_lineage(request: Request) -> str | None:
    found = _LINEAGE.match(str(request.body.get("rid") or ""))
    return found["id"] if found else None


RULES: Final[tuple[tuple[str, Callable[[Request], str | None]], ...]] = (
    ("X-Heddle-Trajectory-Id", _header("x-heddle-trajectory-id")),
    ("heddle.trajectory_id", _field("heddle", "trajectory_id")),
    ("X-SMG-Routing-Key", _header("x-smg-routing-key")),
    ("X-Session-Id", _header("x-session-id")),
    ("session_id", _field("session_id")),
    ("program_id", _field("program_id")),
    ("extra_body.program_id", _field("extra_body", "program_id")),
    ("metadata.session_id", _field("metadata", "session_id")),
    ("metadata.trajectory_id", _field("metadata", "trajectory_id")),
    ("path", _path_id),
    ("authorization", _bearer),
    ("user", _field("user")),
    ("rid", _rid_lineage),
)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def parse_trace(header: str | None) -> tuple[str, str] | None:
    """Trace id and span id of a `traceparent`; None when it is none."""
    if not header:
        return None
    found = _TRACEPARENT.match(header.strip().lower())
    if not found or set(found[1]) == {"0"} or set(found[2]) == {"0"}:
        return None
    return found[1], found[2]
