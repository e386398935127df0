"""Does the fleet bench shift lengths of workloads that there are?"""

from __future__ import annotations

from heddle.app.bench.fleet_shifts import GROUPS, SAMPLES, WORK
from heddle.controller.emulator.workload import generate


def test_every_workload_of_the_shifts_is_generated_in_every_size():
    for name in WORK:
        for groups in GROUPS:
            assert len(generate(name, groups=groups, samples=SAMPLES)) == groups * SAMPLES
