"""Plotly with our kinds of traces alone: what is called stays, what is not known stays whole."""

from __future__ import annotations

import re
from pathlib import Path

import streamlit

from heddle import dashboards
from heddle.app.light_plotly import KINDS, light

SCRIPT = next((Path(streamlit.__file__).parent / "static/static/js").glob("PlotlyChart.*.js"))
OURS = Path(dashboards.__file__).parent
BUNDLE = (
    'var a=_({"src/lib.js"(e,t){t.exports=1}}),b=_({"src/bar.js"(e,t){a();t.exports=2}}),'
    'c=_({"lib/bar.js"(e,t){t.exports=b()}}),d=_({"lib/pie.js"(e,t){t.exports=x()}}),'
    'x=_({"src/pie.js"(e,t){f({m(){n(()=>{if(1){}})}});t.exports=a()}});'
    'function z(){}var q=g({"src/units.mjs"(){z()}}),'
    'k=_({"src/core.js"(e,t){q();t.exports={}}});'
    'return _({"lib/index.js"(e,t){var n=k();n.register([c(),d()]),t.exports=n}})()'
)


def test_what_our_kinds_call_stays_and_the_rest_is_empty() -> None:
    made = light(BUNDLE)
    assert "n.register([c()])" in made
    for kept in ("t.exports=1", "a();t.exports=2", "t.exports=b()", "q();t.exports={}"):
        assert kept in made
    assert 'd=_({"lib/pie.js"(){}}),' in made


def test_what_stands_before_a_module_is_nobodys_to_drop() -> None:
    """A function there may be the module's, though the file before it is called by nobody."""
    assert "function z(){}" in light(BUNDLE)
    assert 'x=_({"src/pie.js"(e,t)' in light(BUNDLE)


def test_another_bundle_is_left_as_it_is() -> None:
    for other in ("", "export default 1", BUNDLE.replace("lib/bar.js", "lib/bars.js")):
        assert light(other) == other


def test_streamlits_own_loses_more_than_half() -> None:
    whole = SCRIPT.read_text()
    made = light(whole)
    assert len(made) < len(whole) / 2
    files = r'"((?:src|lib|node_modules|build)/[^"\n]+)"\('
    assert re.findall(files, made) == re.findall(files, whole)


def test_our_figures_have_no_other_kinds() -> None:
    names = {
        name
        for file in OURS.rglob("*.py")
        for name in re.findall(r"\bgo\.([A-Z]\w+)", file.read_text())
    }
    kinds = {"Scatter"} | {Path(kind).stem.capitalize() for kind in KINDS}
    assert names - {"Figure"} == kinds
