"""Is the tree as CONTRIBUTING.md draws it: short files, short functions, captions, one surname?"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import generate
import pytest
import sizes

FILES = [p.relative_to(sizes.ROOT) for p in sizes.sources(*sizes.TREES)]
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# This file and the rules that forbid the words have to name them.
NAMES_THEM = {Path("tests/test_layout.py")}


def tree_of(file: Path) -> ast.Module:
    return ast.parse((sizes.ROOT / file).read_text())


def test_the_trees_are_found() -> None:
    assert {f.parts[0] for f in FILES} >= {*generate.ROOMS, "docs", "tests"}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_file_has_at_most_400_lines(file: Path) -> None:
    assert sizes.lines(sizes.ROOT / file) <= sizes.FILE_LIMIT


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_function_has_at_most_50_lines(file: Path) -> None:
    found = sizes.functions(sizes.ROOT / file)
    assert not [(name, n) for name, n in found if n > sizes.FUNCTION_LIMIT]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_module_opens_with_its_caption(file: Path) -> None:
    assert ast.get_docstring(tree_of(file)), f"{file} needs a docstring that says its question"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_are_absolute_and_say_heddle(file: Path) -> None:
    plain = set(generate.ROOMS)
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively"
            assert (node.module or "").partition(".")[0] not in plain
        if isinstance(node, ast.Import):
            assert not plain & {alias.name.partition(".")[0] for alias in node.names}


@pytest.mark.parametrize("file", [f for f in FILES if f not in NAMES_THEM], ids=str)
def test_nothing_is_left_for_later(file: Path) -> None:
    text = (sizes.ROOT / file).read_text()
    assert not UNFINISHED.search(text), f"{file} promises work instead of doing it"


def test_every_package_says_what_it_is() -> None:
    for room in generate.ROOMS:
        for package in generate.packages(room):
            assert generate.first_line(package / "__init__.py"), f"{package} has no caption"


def test_tests_are_no_package_and_their_names_are_unique() -> None:
    tests = sizes.sources("tests")
    assert not [p for p in tests if p.name == "__init__.py"]
    names = [p.name for p in tests if p.name != "conftest.py"]
    assert sorted(set(names)) == sorted(names)


def test_spread_reports_median_90th_and_longest() -> None:
    assert sizes.spread(list(range(1, 12))) == "6/10/11"
    assert sizes.spread([7]) == "7/7/7"
    assert sizes.spread([]) == "-"
