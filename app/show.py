"""How do commands speak: progress and remarks on stderr, results on stdout?"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from heddle.app.driver import DriveResult

OUT: Final = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
ERR: Final = Console(stderr=True, highlight=False, soft_wrap=True)


def say(sentence: str) -> None:
    """A remark for a person."""
    ERR.print(sentence, markup=False)


def as_json(value: Any) -> None:
    """The one JSON document of a --json command."""
    import orjson

    from heddle.collector.exporters.values import worded

    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    sys.stdout.write(orjson.dumps(value, default=worded, option=options).decode() + "\n")


@contextmanager
def bar(title: str, total: int) -> Generator[Callable[[DriveResult], None], None, None]:
    """A progress bar over trajectories; without a terminal, a line for each quarter done."""
    if not ERR.is_terminal:
        yield _quarters(title, total)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(
            "{task.completed:.0f}/{task.total:.0f} trajectories, {task.fields[steps]} steps"
        ),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=ERR) as progress:
        task = progress.add_task(title, total=total, steps=0)

        def update(seen: DriveResult) -> None:
            progress.update(task, completed=_done(seen), steps=seen.steps)

        yield update


def _done(seen: DriveResult) -> int:
    return seen.finished + sum(seen.errors.values())


def _quarters(title: str, total: int) -> Callable[[DriveResult], None]:
    """Says how far it is, at most five times."""
    say(f"{title}: {total} trajectories ...")
    said, began = 0, time.monotonic()

    def update(seen: DriveResult) -> None:
        nonlocal said
        done = _done(seen)
        if (quarter := 4 * done // max(total, 1)) > said:
            said, took_s = quarter, time.monotonic() - began
            say(f"{title}: {done}/{total} trajectories, {seen.steps} steps, {took_s:.0f} s")

    return update


@contextmanager
def counter(title: str, unit: str) -> Generator[Callable[[int], None], None, None]:
    """A count that grows towards nobody knows what; without a terminal, one line at the end."""
    if not ERR.is_terminal:
        seen = [0]
        yield lambda done: seen.__setitem__(0, done)
        say(f"{title}: {seen[0]:,} {unit}")
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:,.0f}} {unit}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=ERR) as progress:
        task = progress.add_task(title, total=None)

        def update(done: int) -> None:
            progress.update(task, completed=done)

        yield update


@contextmanager
def steps(title: str, unit: str) -> Generator[Callable[[int, int], None], None, None]:
    """A bar over (done, total); without a terminal, a line for each quarter done."""
    if not ERR.is_terminal:
        said = [0]

        def line(done: int, total: int) -> None:
            if (quarter := 4 * done // max(total, 1)) > said[0]:
                said[0] = quarter
                say(f"{title}: {done}/{total} {unit}")

        yield line
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:.0f}}/{{task.total:.0f}} {unit}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=ERR) as progress:
        task = progress.add_task(title, total=1)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def spinner(title: str) -> Generator[None, None, None]:
    """For a wait whose length nobody knows."""
    if not ERR.is_terminal:
        say(f"{title} ...")
        yield
        return
    with ERR.status(title):
        yield


def plain(said: str) -> str:
    """What a sender said, without what would steer a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in said)


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None
) -> None:
    """Rows under headings; the first column is text, the others are figures."""
    drawn = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, heading in enumerate(headings):
        drawn.add_column(heading, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(plain(cell)) for cell in row))
    OUT.print(drawn)
