"""Ray Data reads what two collectors sealed as one data set, the way docs/collector.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing

import orjson
import pytest

from heddle.collector import otlp, sealing
from heddle.collector.store import Store

READ = """
import collections, json, sys, ray
from ray.data.datasource.partitioning import Partitioning
quiet = dict(include_dashboard=False, log_to_driver=False)
ray.init(address="local", num_cpus=1, object_store_memory=80 << 20, **quiet)
partitioning = Partitioning("hive")
rows = ray.data.read_parquet(sys.argv[1], partitioning=partitioning).take_all()
count = collections.Counter((row["run_id"], row["rollout_id"]) for row in rows)
print(json.dumps([sorted(count.items()), sum(row["output_tokens"] or 0 for row in rows)]))
ray.shutdown()
"""


def spans_of(rollout, count):
    for number in range(count):
        pairs = {
            "heddle.run.id": "run/1",
            "heddle.rollout.id": rollout,
            "gen_ai.operation.name": "chat",
            "gen_ai.usage.output_tokens": str(number),
        }
        # The rollout's own span ends it, so that it may be sealed.
        name = "heddle.rollout" if number == 0 else "chat"
        yield {
            "traceId": f"{count:032x}",
            "spanId": f"{number + 1:016x}",
            "name": name,
            "startTimeUnixNano": "1000",
            "endTimeUnixNano": "2000",
            "attributes": [
                {"key": key, "value": {"stringValue": value}}
                for key, value in (pairs | {"gen_ai.operation.name": name}).items()
            ],
        }


# Ray starts six processes and imports itself in two: 17 s of CPU time.
@pytest.mark.ray
@pytest.mark.timeout(400)
def test_ray_data_reads_what_two_collectors_sealed(tmp_path):
    for name, rollout, count in (("a", "r 1", 3), ("b", "r=2", 5)):
        path = tmp_path / name / "h.duckdb"
        with closing(Store(path, sealed_url=str(tmp_path / "sealed"))) as store:
            body = {"resourceSpans": [{"scopeSpans": [{"spans": list(spans_of(rollout, count))}]}]}
            store.append(otlp.decode(orjson.dumps(body), otlp.JSON).rows, 1).result(60)
            assert [sealing.seal(store, *ready) for ready in sealing.ready(store, 0)]
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READ, str(tmp_path / "sealed" / "spans")],
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-2_000:]
    assert json.loads(told.stdout.splitlines()[-1]) == [
        [[["run/1", "r 1"], 3], [["run/1", "r=2"], 5]],
        13,
    ]
