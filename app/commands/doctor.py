"""`heddle doctor`: what the settings resolved to, and what is wrong with machine and fleet."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.app import checks
from heddle.app.commands import options
from heddle.app.errors import AppError

if TYPE_CHECKING:
    from heddle.app.settings import Settings

TYPER = options.help_with("heddle doctor", "heddle doctor --json")
EXTRAS: Final = {"duckdb": "serve", "streamlit": "dash", "torch": "train", "ray": "ray"}


def run(data: options.Data = None, json: options.Json = False) -> None:
    """Print the settings and what is wrong.

    Exit code 1 when something is wrong.
    """
    from heddle.app import fleet_doctor, show
    from heddle.app.settings import load

    settings = load({"data": data})
    tree = settings.model_dump(mode="json", exclude={"token"})
    problems = [*_problems(settings), *fleet_doctor.problems(settings)]
    notes = [*_notes(settings), *fleet_doctor.notes(settings)]
    if json:
        show.as_json({"settings": tree, "problems": problems, "notes": notes})
    else:
        show.table(["setting", "value"], _rows(tree))
        for line in notes:
            show.OUT.print(f"note: {line}", markup=False)
        for line in problems:
            show.OUT.print(f"wrong: {line}", markup=False)
        if not problems:
            show.OUT.print("nothing is wrong")
    raise SystemExit(1 if problems else 0)


def _rows(tree: dict[str, object], prefix: str = "") -> list[list[str]]:
    rows: list[list[str]] = []
    for name, value in tree.items():
        if isinstance(value, dict):
            rows += _rows({str(k): v for k, v in value.items()}, f"{prefix}{name}.")
        else:
            rows.append([prefix + name, "-" if value is None else str(value)])
    return rows


def _problems(settings: Settings) -> Iterator[str]:
    try:
        checks.host(settings.host)
    except AppError as error:
        yield str(error)
    if not _writable(settings.data):
        yield (
            f"the data folder {settings.data} cannot be written; choose another with --data, or "
            "give yourself the right to write there"
        )
    token = settings.token_path
    if token.exists() and stat.S_IMODE(token.stat().st_mode) & 0o077:
        yield f"the token file {token} can be read by others; chmod 600 {token}"
    if find_spec("duckdb") is None:
        yield "duckdb is missing; pip install 'heddle-rollout[serve]'"


def _notes(settings: Settings) -> Iterator[str]:
    from heddle.app.compose import WHAT, answers
    from heddle.app.supervise import is_free

    for name in checks.mine():
        yield f"the environment variable {name} is ignored: no setting has that name"
    for module, extra in EXTRAS.items():
        if find_spec(module) is None:
            yield f"{module} is not installed; pip install 'heddle-rollout[{extra}]'"
    for name, what in WHAT.items():
        port = getattr(settings.ports, name)
        if not is_free(port, settings.host):
            yield (
                f"port {port}, for the {what}, is in use: by your own stack if one runs, else "
                f"choose another with HEDDLE_PORTS__{name.upper()}"
            )
    for url in settings.fleet.workers:
        if not answers(f"{url.rstrip('/')}/health"):
            yield f"no engine answers at {url}; start it, or leave it out of --worker"


def _writable(folder: Path) -> bool:
    nearest = folder if folder.exists() else folder.absolute().parent
    return nearest.is_dir() and os.access(nearest, os.W_OK)
