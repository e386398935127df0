"""May this request change anything, and may this browser page ask at all?

Token compared in constant time, a JSON content type for every body (a form post of another page
cannot send one), Origin and Host checked against DNS rebinding. Loopback names, addresses and the
configured host are known.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from heddle.controller.errors import ControllerError

READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
BODILESS: Final = frozenset({"/add_worker", "/remove_worker", "/flush_cache", "/finish_session"})
"""Calls without a body; a foreign page's form post is refused for its Origin."""
REGISTERS: Final = re.compile(r"POST /(workers|add_worker|remove_worker)|DELETE /workers/.+", re.S)
"""What an engine may do without the token where registration is open; whole, method and path."""
FREE: Final = re.compile(
    r"POST /(heddle/v1/(acquire|release|trajectories/.+/(finish|tool))"
    r"|finish_session|programs/release|close_session)",
    re.S,
)
"""What an agent may, as on the data plane: a step or its end changes nobody else's. Every route
that is not named here wants the token."""
LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Refused(ControllerError):
    """401, 403 or 415 with a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Guard:
    """What is allowed; `hosts` and `origins` beside the ones always known."""

    token: str
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    open_registration: bool = False
    """Whether engines may register without the token, as they do at SGLang's router."""

    def check_page(self, headers: Mapping[str, str]) -> None:
        """Refuse a foreign Origin and a Host that is a name nobody gave."""
        host = headers.get("host", "")
        name = _name_of(host)
        if host and not (_is_address(name) or name in LOCAL or name in self.hosts):
            raise Refused(403, f"host {name!r} is not one of this controller's; see --allow-host")
        origin = headers.get("origin")
        if origin is None or origin in self.origins:
            return
        if urlsplit(origin).netloc != host or not host:
            raise Refused(403, f"origin {origin!r} may not call this controller")

    def check_change(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Refuse a change without JSON or without the token."""
        if method in READS:
            return
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method != "DELETE" and path not in BODILESS and content_type != "application/json":
            raise Refused(415, f"send application/json, not {content_type or 'no content type'}")
        call = f"{method} {path}"
        if FREE.fullmatch(call) or (self.open_registration and REGISTERS.fullmatch(call)):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            given.strip().encode(), self.token.encode()
        ):
            raise Refused(401, "changing anything needs the token: Authorization: Bearer TOKEN")


# Every request asks, nearly always of the same few.
@lru_cache(maxsize=256)
def _name_of(host: str) -> str:
    return urlsplit(f"//{host}").hostname or ""


@lru_cache(maxsize=256)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
