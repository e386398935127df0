"""How does a browser get plotly with the two kinds of traces our figures have, and no others?

Streamlit's script holds all 48 kinds, maps and 3D among them: 4.7 MB whose beginning takes a
browser longer than everything else of a page. The bundle names each of its files and begins one
when it is first called for; here its list of kinds keeps ours, and the files that nothing calls any
more become empty. A script that does not look like that bundle is left as it is, and so is every
file that is not surely alone between its neighbours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

KINDS: Final = ("lib/bar.js",)
"""Beside scatter, which plotly's core brings. Another kind in a figure needs a line here."""
_FILE: Final = re.compile(r'=([\w$]+)\(\{"([^"\n]+)"\(')
_NAME: Final = re.compile(r"[\w$]+$")
_NAME_CHARS: Final = 40
_ROOT: Final = re.compile(
    r'return ([\w$]+)\(\{"lib/index\.js"\(\w,\w\)\{'
    r"var \w=([\w$]+)\(\);\w\.register\(\[([\w$(),]+)\]\)"
)
"""Its groups: the wrapper of a file that is no module, the core's name, the list of kinds."""
_CALL: Final = re.compile(r"([\w$]+)\(\)")
_JOINT: Final = re.compile(r"\}\}\)(?:,|;var )\Z")


@dataclass(frozen=True, slots=True)
class _File:
    """One file of plotly's: `name=wrap({"path"(`, from *start* to the next one's."""

    name: str
    wrap: str
    path: str
    start: int
    end: int

    @property
    def head(self) -> str:
        return f'{self.name}={self.wrap}({{"{self.path}"(){{'


def light(script: str) -> str:
    """*script* with the kinds of KINDS alone; the same where it is not the bundle we know."""
    root = _ROOT.search(script)
    files = _files(script, root.start()) if root else {}
    kept = {one.name for one in files.values() if one.path in KINDS}
    if root is None or len(kept) != len(KINDS):
        return script
    needed = _called(script, files, {root[2], *kept})
    pieces, at = list[str](), 0
    for one, after in pairwise(files.values()):
        joint = _JOINT.search(script, one.start, one.end)
        # What stands between two files belongs to the second, and only modules have such.
        if one.name not in needed and after.wrap == root[1] and joint:
            pieces += [script[at : one.start], one.head, joint[0]]
            at = one.end
    listed = ",".join(f"{name}()" for name in sorted(kept))
    return "".join([*pieces, script[at : root.start(3)], listed, script[root.end(3) :]])


def _files(script: str, end: int) -> dict[str, _File]:
    """By name, in their order."""
    heads = list(_FILE.finditer(script, 0, end))
    names = [_name(script, one.start()) for one in heads]
    starts = [one.start() - len(name) for one, name in zip(heads, names, strict=True)]
    ends = [*starts[1:], end]
    return {
        name: _File(name, head[1], head[2], *span)
        for name, head, *span in zip(names, heads, starts, ends, strict=True)
    }


def _name(script: str, end: int) -> str:
    found = _NAME.search(script, max(0, end - _NAME_CHARS), end)
    return found[0] if found else ""


def _called(script: str, files: dict[str, _File], first: set[str]) -> set[str]:
    """Names that are called from *first*, by way of others too; too many rather than too few."""
    seen, waiting = set[str](), list(first)
    while waiting:
        name = waiting.pop()
        if name in files and name not in seen:
            seen.add(name)
            waiting += _CALL.findall(script[files[name].start : files[name].end])
    return seen
