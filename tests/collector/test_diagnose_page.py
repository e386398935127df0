"""Does the page on diagnosing state the rules, thresholds and queries as they are?"""

from __future__ import annotations

from pathlib import Path

from heddle.collector.findings.rules import RULES
from heddle.collector.findings.thresholds import TABLE
from heddle.collector.records_time import EXPLAINED

PAGE = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text("utf-8")


def test_every_threshold_is_documented_with_its_number():
    for one in TABLE:
        assert f"| `{one.name}` | {one.value:g} | {one.unit} |" in PAGE


def test_every_rule_and_every_query_is_documented():
    for name in (*RULES, *EXPLAINED):
        assert f"| `{name}` |" in PAGE
