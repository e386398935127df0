"""How long are our files and functions? Prints the table that CONTRIBUTING.md sets limits for.

Counts lines of source as they stand, docstrings and blanks included; says nothing about quality.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
TREES = ("collector", "models", "controller", "dashboards", "app", "docs", "tests")
FILE_LIMIT = 400
FUNCTION_LIMIT = 50


def sources(*trees: str) -> list[Path]:
    """Python files below the trees; SGLang's shim mimics other people's modules and is left out."""
    found = [p for tree in trees for p in sorted((ROOT / tree).rglob("*.py"))]
    return [p for p in found if "shim" not in p.parts]


def functions(source: Path) -> Iterator[tuple[str, int]]:
    """Name and length of every function, decorators not counted."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def lines(source: Path) -> int:
    """Lines of a file."""
    return len(source.read_text().splitlines())


def spread(lengths: Sequence[int]) -> str:
    """Median / 90th percentile / longest."""
    if not lengths:
        return "-"
    ordered = sorted(lengths)
    last = len(ordered) - 1
    return "/".join(str(ordered[round(last * q)]) for q in (0.5, 0.9, 1.0))


def row(label: str, files: Sequence[Path]) -> str:
    """One line of the table; empty package files do not count."""
    lengths = [n for n in map(lines, files) if n > 1]
    bodies = [n for f in files for _, n in functions(f)]
    return f"{label:<12}{len(lengths):>6}{sum(lengths):>8}   {spread(lengths):<14}{spread(bodies)}"


def main() -> None:
    """The table, then how much test there is for a line of source."""
    print(f"{'tree':<12}{'files':>6}{'lines':>8}   {'file':<14}function   (median/p90/longest)")
    for tree in TREES:
        print(row(tree, sources(tree)))
    print(row("all", sources(*TREES)))
    tests, ours = (sum(map(lines, sources(*t))) for t in (("tests",), TREES[:5]))
    print(f"test lines per source line: {tests / ours:.2f}")


if __name__ == "__main__":
    main()
