"""Does the documentation still say what the code does?"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import generate
import pytest

from heddle.collector import conventions

ROOT = generate.ROOT
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#]+)(?:#[^)]*)?\)")
SHELL_BLOCK = re.compile(r"```(?:sh|shell|bash|console)\n(.*?)```", re.DOTALL)


def shell_lines(page: Path) -> list[str]:
    """Commands of a page's shell blocks, without prompts, comments and continuations."""
    text = "\n".join(SHELL_BLOCK.findall(page.read_text())).replace("\\\n", " ")
    stripped = (line.strip().removeprefix("$ ") for line in text.splitlines())
    return [line for line in stripped if line and not line.startswith("#")]


@pytest.mark.parametrize("attribute", conventions.ATTRIBUTES, ids=lambda a: a.name)
def test_every_attribute_is_documented(attribute: conventions.Attribute) -> None:
    page = (ROOT / "docs/conventions.md").read_text()
    assert f"| `{attribute.name}` | {attribute.kind} | {attribute.unit} |" in page
    for alias in attribute.aliases:
        assert f"`{alias}`" in page


def test_every_span_name_is_documented() -> None:
    page = (ROOT / "docs/conventions.md").read_text()
    assert not [name for name in conventions.HEDDLE_SPANS if f"`{name}`" not in page]


def test_every_package_is_in_the_table_of_rooms() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    for room in generate.ROOMS:
        for package in generate.packages(room):
            assert f"`{package.relative_to(ROOT)}/`" in page


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs/commands.md").read_text()
    for name, command in generate.commands().items():
        assert f"## heddle {name}\n" in page
        assert command.help, f"heddle {name} needs a sentence of help"


def test_every_decision_is_short_and_says_what_was_rejected() -> None:
    pages = sorted((ROOT / "docs/decisions").glob("*.md"))
    assert [int(p.name[:4]) for p in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text()
        assert "**Rejected.**" in text or "What it saves" in text, page.name
        assert len(text.splitlines()) <= 40, page.name


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in LINK.findall(page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


ANCHOR = re.compile(r"\]\(((?!https?:)[^)#]*)#([^)]+)\)")


def test_anchors_between_pages_are_headings_there() -> None:
    for page in PAGES:
        for target, anchor in ANCHOR.findall(page.read_text()):
            text = ((page.parent / target) if target else page).read_text()
            heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, f"{page.name} links to {target}#{anchor}"


def test_every_setting_says_what_it_is() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    assert not [row for row in rows if not row.split("|")[4].strip()]


def test_a_cell_with_a_bar_does_not_split_its_row() -> None:
    assert generate.table(["a"], [["x|y"]]) == "| a |\n| --- |\n| x\\|y |\n"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_that_pages_name_exist(page: str) -> None:
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in shell_lines(ROOT / page):
        if line.startswith("make "):
            named = [word for word in line.split()[1:] if "=" not in word]
            assert set(named) <= known, line


def test_heddle_commands_and_options_that_pages_show_exist() -> None:
    commands = generate.commands()
    for page in PAGES:
        for line in shell_lines(page):
            command, _, rest = line.partition("heddle ")
            if command not in ("", ".venv/bin/") or not rest:
                continue
            name, *words = shlex.split(rest, comments=True)
            assert name in commands, f"{page.name}: {line}"
            known = {o for p in commands[name].params for o in (*p.opts, *p.secondary_opts)}
            used = {w.partition("=")[0] for w in words if w.startswith("--")}
            assert used <= known | {"--help"}, f"{page.name}: {line}"


def test_generated_parts_are_current() -> None:
    pages = [p for p in PAGES if "[[[cog" in p.read_text()]
    path = f"import sys; sys.path.insert(0, {str(ROOT / 'docs')!r})"
    done = subprocess.run(
        [sys.executable, "-m", "cogapp", "--check", "-p", path, *map(str, pages)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, f"run: make docs\n{done.stdout}{done.stderr}"
