"""The plugin's rules without an engine: rate, one change an interval, the same on every rank."""

from __future__ import annotations

import ast
import json
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import heddle.controller.sglang_plugin as plugin


def pending():
    clock = [0.0]
    return plugin.Pending(lambda: clock[0]), clock


def test_changes_go_out_once_an_interval_and_the_newest_wish_wins():
    waiting, clock = pending()
    waiting.ask({"a": 1})
    assert waiting.due() == {"a": 1}
    waiting.ask({"b": 1, "a": 2})
    assert waiting.due() == {}
    clock[0] = plugin.FLUSH_S
    waiting.ask({"b": 7})
    assert waiting.due() == {"b": 7}  # a changed too lately
    clock[0] = plugin.CHANGE_S
    assert waiting.due() == {"a": 2}
    clock[0] = 10 * plugin.CHANGE_S
    waiting.ask({"a": 2})
    assert waiting.due() == {}  # no change at all
    assert waiting.counts["sent"] == 3


def test_every_rank_takes_the_marks_out_and_applies_the_same():
    ranks = [plugin.Table(), plugin.Table()]
    received = ["request", (plugin.MARK, {"a": 5, "gone": 1}), "abort"]
    queues = [[SimpleNamespace(rid=r, priority=0) for r in "abc"] for _ in ranks]
    for rank, queue in zip(ranks, queues, strict=True):
        assert rank.take(list(received)) == ["request", "abort"]
        assert rank.apply(queue) == 1
        assert rank.apply(queue) == 0
    assert [[r.priority for r in q] for q in queues] == [[5, 0, 0]] * 2
    assert plugin.Table().take(None) is None


def test_the_port_takes_changes_and_says_what_happened():
    server = plugin.listen(0)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    body = json.dumps({"changes": {"x": 3}}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body)) as reply:
        assert json.load(reply)["taken"] == 1
    with urllib.request.urlopen(url) as reply:
        said = json.load(reply)
    assert (said["plugin"], said["protocol"], said["taken"]) == ("heddle", plugin.PROTOCOL, 0)
    server.shutdown()
    server.server_close()
    assert plugin.PENDING.due() == {"x": 3}


def test_it_imports_the_standard_library_alone():
    tree = ast.parse(Path(plugin.__file__).read_text())
    names = {
        (n.module if isinstance(n, ast.ImportFrom) else n.names[0].name).partition(".")[0]
        for n in tree.body
        if isinstance(n, ast.Import | ast.ImportFrom)
    }
    assert names <= set(sys.stdlib_module_names)


def test_without_its_port_it_does_nothing(monkeypatch):
    monkeypatch.delenv(plugin.PORT, raising=False)
    plugin.register()
    assert not plugin._listening
