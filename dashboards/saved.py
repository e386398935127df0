"""Which SELECTs did people save by name?

One JSON file beside the services' data, replaced as a whole, so that every tab and the next
dashboard see it; without a path they live as long as the process. Bounded: it is typed by hand.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import streamlit as st

MOST: Final = 200
LONGEST_NAME: Final = 80
LONGEST_TEXT: Final = 100_000
"""What the collector's SQL door reads at most."""


class Shelf:
    """Name to SELECT; shared by the threads of all tabs."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._kept: dict[str, str] = {}

    def all(self) -> dict[str, str]:
        """By name; what the file holds wrongly is left out."""
        with self._lock:
            return dict(sorted(self._read().items()))

    def keep(self, name: str, text: str) -> str | None:
        """Save, replacing what has that name; the sentence that says why not, or None."""
        name = name.strip()
        if not name or len(name) > LONGEST_NAME or len(text) > LONGEST_TEXT:
            return f"A name has 1 to {LONGEST_NAME} characters, a query at most {LONGEST_TEXT:,}."
        with self._lock:
            kept = self._read()
            if name not in kept and len(kept) >= MOST:
                return f"There are {MOST} saved queries already; delete one first."
            return self._write({**kept, name: text})

    def drop(self, name: str) -> str | None:
        """Forget; the sentence that says why not, or None."""
        with self._lock:
            kept = self._read()
            kept.pop(name, None)
            return self._write(kept)

    def _read(self) -> dict[str, str]:
        if self.path is not None:
            with suppress(OSError, ValueError):
                held = json.loads(self.path.read_text("utf-8"))
                if isinstance(held, dict):
                    self._kept = {k: v for k, v in held.items() if isinstance(v, str)}
        return dict(self._kept)

    def _write(self, kept: dict[str, str]) -> str | None:
        self._kept = kept
        if self.path is None:
            return None
        aside = self.path.with_name(self.path.name + ".part")
        try:
            aside.write_text(json.dumps(kept, indent=1, ensure_ascii=False), "utf-8")
            aside.replace(self.path)
        except OSError as error:
            return f"{self.path} cannot be written: {error.strerror}"
        return None


@st.cache_resource(max_entries=4, show_spinner=False)
def _shelf(path: str | None) -> Shelf:
    return Shelf(Path(path) if path else None)


def shelf() -> Shelf:
    """The one of this process: HEDDLE_SAVED names its file."""
    return _shelf(os.environ.get("HEDDLE_SAVED") or None)
