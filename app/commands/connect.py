"""How does a command reach a running controller or collector?"""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.app.settings import load, token

# Each client brings half a second of imports; a command needs one of them.
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heddle.collector.client import CollectorClient
    from heddle.controller.client import ControllerClient
    from heddle.models.dataset import Dataset


def controller_client(
    url: str | None, data: Path | None, token_file: Path | None, timeout_s: float = 60.0
) -> ControllerClient:
    """A client with the token of the data folder."""
    from heddle.controller.client import ControllerClient

    settings = load({"controller": url, "data": data, "token_file": token_file})
    return ControllerClient(settings.controller_url, token=token(settings), timeout_s=timeout_s)


def collector_client(
    url: str | None, door: str = "query", timeout_s: float = 30.0
) -> CollectorClient:
    """A client with the token of that door: query, sql or admin."""
    from heddle.app.collecting import tokens
    from heddle.collector.client import CollectorClient

    settings = load({"collector": url})
    held = getattr(tokens(settings.collect), door)
    return CollectorClient(settings.query_url, token=held, timeout_s=timeout_s)


def asker(who: str | None = None) -> str:
    """Who asks: as given, else this user; the number of one that has no name here."""
    try:
        return who or getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def plain(said: Any) -> dict[str, Any]:
    """A pydantic answer as a dict; a dict as it is."""
    return said if isinstance(said, dict) else said.model_dump()


def show_predictor(said: Any, *, json: bool) -> None:
    """The predictor that serves, and the versions there are."""
    from heddle.app import show

    told = plain(said)
    if json:
        show.as_json(told)
        return
    show.OUT.print(f"serving: {told['version']}", markup=False)
    show.OUT.print(f"known: {', '.join(told['known'])}", markup=False)
    for sentence in told.get("refused", ()):
        show.OUT.print(f"refused: {sentence}", markup=False)


def recorded(url: str, run: str | None, rollout: str | None) -> Dataset:
    """Every finished trajectory of the run: all runs when none is named."""
    from heddle.app import show
    from heddle.models.dataset import from_store

    with collector_client(url) as client, show.spinner("reading the store"):
        return from_store(client, run, rollout)


def show_gate(table: Sequence[Mapping[str, Any]]) -> None:
    """The gate's comparisons: the means over the steps, then Spearman at each step."""
    from heddle.app import show

    rows = [
        (
            str(row["against"]),
            "all" if row["k"] < 0 else str(row["k"]),
            str(row["n"]),
            str(row["metric"]),
            f"{row['baseline']:.4f}",
            f"{row['candidate']:.4f}",
            f"{row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]",
        )
        for row in table
        if row["k"] < 0 or row["metric"] in ("spearman", "recall20")
    ]
    headings = ("against", "k", "n", "metric", "baseline", "candidate", "difference (90 %)")
    show.table(headings, rows)
