"""Which parts of the documentation does the code itself state? Each function returns one part.

Markdown, called from cog blocks in README.md and docs/*.md (`make docs`); `make check` fails when
a page lags.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from heddle.collector import conventions

ROOT = Path(__file__).parent.parent
ROOMS = ("collector", "models", "controller", "dashboards", "app")
"""In order of knowledge, the one that knows least first."""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(
        f"| {' | '.join(c.replace('|', chr(92) + '|') for c in row)} |\n" for row in lines
    )


def first_line(source: Path) -> str:
    """The first line of a module's docstring, or nothing."""
    return (ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n")[0]


def packages(room: str) -> Iterator[Path]:
    """The folders of a room that are packages, the room itself first."""
    return (p.parent for p in sorted((ROOT / room).rglob("__init__.py"), key=lambda p: p.parent))


def rooms() -> str:
    """Every package with the caption its docstring gives it."""
    found = [p for room in ROOMS for p in packages(room)]
    rows = [(f"`{p.relative_to(ROOT)}/`", first_line(p / "__init__.py")) for p in found]
    return table(("folder", "what it is"), rows)


def room_captions() -> str:
    """The five rooms alone."""
    rows = [(f"`{room}/`", first_line(ROOT / room / "__init__.py")) for room in ROOMS]
    return table(("room", "what it is"), rows)


def attributes() -> str:
    """The table of attributes that collector/conventions.py is."""
    rows = [
        (
            f"`{a.name}`",
            a.kind,
            a.unit,
            a.meaning,
            f"`{a.column}`" if a.column else "",
            ", ".join(f"`{alias}`" for alias in a.aliases),
        )
        for a in conventions.ATTRIBUTES
    ]
    return table(("attribute", "kind", "unit", "meaning", "column", "also known as"), rows)


def spans() -> str:
    """Names of the spans that GenAI does not have."""
    return ", ".join(f"`{name}`" for name in conventions.HEDDLE_SPANS) + "\n"


def commands() -> dict[str, Any]:
    """The commands of `heddle` by name, as click sees them."""
    typer = importlib.import_module("typer")
    cli = importlib.import_module("heddle.app.cli")
    group = typer.main.get_command(cli.build())
    return {name: command for name, command in sorted(group.commands.items()) if not command.hidden}


def _sentence(text: str | None) -> str:
    return (text or "").strip().partition("\n\n")[0].replace("\n", " ")


def command_list() -> str:
    """One line a command."""
    rows = [(f"`heddle {name}`", _sentence(c.help)) for name, c in commands().items()]
    return table(("command", "what it does"), rows)


def _options(command: Any) -> Iterator[tuple[str, str, str]]:
    for p in command.params:
        if getattr(p, "hidden", False) or p.name == "help":
            continue
        names = [*p.opts, *p.secondary_opts] if p.param_type_name == "option" else [p.name.upper()]
        name = " / ".join(names)
        # A flag that is off unless given says so by being a flag.
        default = "" if p.default is None or p.default is False else str(p.default)
        yield f"`{name}`", default, _sentence(getattr(p, "help", None))


def _examples(epilog: str | None) -> str:
    """What --help ends with, as a block to copy from."""
    lines = [line.strip() for line in (epilog or "").splitlines() if line.startswith("  ")]
    return "\n".join(("```sh", *lines, "```", "")) if lines else ""


def command_reference() -> str:
    """Every command with its options."""
    parts: list[str] = []
    for name, command in commands().items():
        options = list(_options(command))
        parts.append(f"## heddle {name}\n\n{(command.help or '').strip()}\n")
        parts.append(
            table(("option", "default", "meaning"), options) if options else "No options.\n"
        )
        parts.append(_examples(command.epilog))
    return "\n".join(parts)


def _meanings(source: Path) -> dict[tuple[str, str], str]:
    """The sentence below a field of a class, by class and field."""
    found: dict[tuple[str, str], str] = {}
    kinds = [n for n in ast.parse(source.read_text()).body if isinstance(n, ast.ClassDef)]
    for kind in kinds:
        for field, below in pairwise(kind.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[kind.name, ast.unparse(field.target)] = ast.literal_eval(below.value)
    return found


def settings() -> str:
    """Every setting with its variable, its default and its meaning."""
    root = importlib.import_module("heddle.app.settings").Settings
    said = _meanings(ROOT / "app/settings.py")
    rows: list[tuple[str, str, str, str]] = []

    def walk(kind: Any, prefix: str) -> None:
        for name, field in kind.model_fields.items():
            if hasattr(field.annotation, "model_fields"):
                walk(field.annotation, f"{prefix}{name}.")
                continue
            variable = f"HEDDLE_{prefix}{name}".replace(".", "__").upper()
            default = field.get_default(call_default_factory=True)
            shown = "" if default in (None, "", (), {}) else f"`{default}`"
            meaning = " ".join(said.get((kind.__name__, name), "").split())
            rows.append((f"`{prefix}{name}`", f"`{variable}`", shown, meaning))

    walk(root, "")
    return table(("setting", "variable", "default", "meaning"), rows)


def states() -> str:
    """What a GPU can be in, in order of precedence."""
    known = importlib.import_module("heddle.dashboards.theme").STATES
    rows = ((f"`{name}`", state.label, state.says) for name, state in known.items())
    return table(("state", "in the dashboard", "meaning"), rows)


def levers() -> str:
    """Every choice with its policies, from the table the switches are checked against."""
    from heddle.controller.core.policies import KNOWN

    rows = ([choice, ", ".join(f"`{name}`" for name in names)] for choice, names in KNOWN.items())
    return table(["choice", "policies"], rows)


def queries() -> str:
    """Every named query with its filters, and its columns with their units."""
    catalog = importlib.import_module("heddle.collector.queries.catalog")
    shared = importlib.import_module("heddle.collector.queries.filters")
    known = [(f"`{name}`", f.meaning) for name, f in shared.FILTERS.items()]
    parts = [table(("filter", "meaning"), known)]
    for query in catalog.QUERIES.values():
        filters = ", ".join(f"`{name}`" for name in query.filters)
        needs = " or ".join(f"`{name}`" for name in query.needs)
        told = f"Filters: {filters}." + (f" Needs {needs}." if needs else "")
        rows = [(f"`{c.name}`", c.type, c.unit, c.meaning) for c in query.columns]
        columns = table(("column", "type", "unit", "meaning"), rows)
        parts.append(f"### {query.name}\n\n{query.meaning} {told}\n\n{columns}")
    return "\n".join(parts)


def trainer_levers() -> str:
    """Which lever works under which trainer."""
    rows = importlib.import_module("heddle.controller.levers").TABLE
    return table(("trainer", "lever", "works", "because"), rows)
