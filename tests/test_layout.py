"""Is the tree as CONTRIBUTING.md draws it: short files, short functions, captions, one surname?

Each rule is one test over all files and names every offender at once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import generate
import pytest
import sizes

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# The rule itself has to name the words it forbids.
NAMES_THEM = Path(__file__).name


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Every Python file of ours, parsed once."""
    files = sizes.sources(*sizes.TREES)
    return {f.relative_to(sizes.ROOT): ast.parse(f.read_text()) for f in files}


def imported(tree: ast.Module) -> Iterator[str]:
    """Top-level names of the modules a file imports; a relative import yields a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield "." if node.level else (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)


def test_the_trees_are_found(trees: dict[Path, ast.Module]) -> None:
    assert {f.parts[0] for f in trees} >= {*generate.ROOMS, "docs", "tests"}


def test_a_file_has_at_most_400_lines(trees: dict[Path, ast.Module]) -> None:
    lengths = {str(f): sizes.lines(sizes.ROOT / f) for f in trees}
    assert {f: n for f, n in lengths.items() if n > sizes.FILE_LIMIT} == {}


def test_a_function_has_at_most_50_lines(trees: dict[Path, ast.Module]) -> None:
    lengths = {f"{f}:{name}": n for f in trees for name, n in sizes.functions(sizes.ROOT / f)}
    assert {f: n for f, n in lengths.items() if n > sizes.FUNCTION_LIMIT} == {}


def test_a_module_opens_with_its_caption(trees: dict[Path, ast.Module]) -> None:
    assert [str(f) for f, tree in trees.items() if not ast.get_docstring(tree)] == []


def test_imports_are_absolute_and_say_heddle(trees: dict[Path, ast.Module]) -> None:
    banned = {".", *generate.ROOMS}
    found = {str(f): banned.intersection(imported(tree)) for f, tree in trees.items()}
    assert {f: names for f, names in found.items() if names} == {}


def test_nothing_is_left_for_later(trees: dict[Path, ast.Module]) -> None:
    texts = {f: (sizes.ROOT / f).read_text() for f in trees if f.name != NAMES_THEM}
    assert [str(f) for f, text in texts.items() if UNFINISHED.search(text)] == []


def test_every_package_says_what_it_is() -> None:
    packages = [p for room in generate.ROOMS for p in generate.packages(room)]
    assert [str(p) for p in packages if not generate.first_line(p / "__init__.py")] == []


def test_tests_are_no_package_and_their_names_are_unique() -> None:
    tests = sizes.sources("tests")
    assert not [p for p in tests if p.name == "__init__.py"]
    names = [p.name for p in tests if p.name != "conftest.py"]
    assert sorted(set(names)) == sorted(names)


def test_spread_reports_median_90th_and_longest() -> None:
    assert sizes.spread(list(range(1, 12))) == "6/10/11"
    assert sizes.spread([7]) == "7/7/7"
    assert sizes.spread([]) == "-"
