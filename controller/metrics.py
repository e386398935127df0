"""How is the controller doing, in Prometheus' own text?

Read from counters that are kept anyway. docs/alerts.yml holds the rules that watch these names.
`run` is the only label that clients choose; the newest RUNS are told.
"""

from __future__ import annotations

from typing import Any, Final

from heddle.collector.exposition import Metric, Sample, lines_of, one

RUNS: Final = 50


def render(up: Any) -> str:
    """Every metric of a running controller."""
    return "\n".join(lines_of((*_steps(up), *_predictions(up)))) + "\n"


def _steps(up: Any) -> list[Metric]:
    c, g = "counter", "gauge"
    trajectories = up.loop.trajectories.values()
    held = sum(len(t.waiting) for t in trajectories)
    dropped = up.emitter.dropped if up.emitter else 0
    unwritten = up.journal.where.failures
    return [
        one("heddle_controller_workers_alive", g, "Engines that answer.", len(up.fleet.alive)),
        one("heddle_controller_trajectories", g, "Not yet over.", len(trajectories)),
        one("heddle_controller_steps_held", g, "Steps that wait here.", held),
        one("heddle_controller_decision_failures_total", c, "Decisions failed.", up.loop.failures),
        one("heddle_controller_spans_dropped_total", c, "Spans not sent.", dropped),
        one("heddle_controller_pins_failures_total", c, "Pins not written.", unwritten),
    ]


def _predictions(up: Any) -> list[Metric]:
    g = "gauge"
    state = up.predictors.state()
    runs = list(up.loop.beliefs.calibrations.items())[-RUNS:]
    factors: list[Sample] = [({"run": run}, known.factor) for run, known in runs]
    ended: list[Sample] = [({"run": run}, known.ended_count) for run, known in runs]
    covered: list[Sample] = [({"run": run}, known.covered) for run, known in runs]
    return [
        ("heddle_predictor_serving", g, "Serves now.", [({"version": state.version}, 1.0)]),
        one("heddle_predictor_refused", g, "Promoted, but broken.", len(state.refused)),
        one(
            "heddle_prediction_hidden_seconds_total",
            "counter",
            "Networks' answers while a tool ran.",
            up.loop.foresight.hidden_s,
        ),
        one(
            "heddle_prediction_exposed_seconds_total",
            "counter",
            "Networks' answers that a step waited for.",
            up.loop.foresight.exposed_s,
        ),
        one(
            "heddle_prediction_failures_total",
            "counter",
            "Batches the network did not answer.",
            up.loop.foresight.failures,
        ),
        (
            "heddle_calibration_factor",
            g,
            "By which lengths of this rollout spread wider than predicted; 1 as predicted.",
            factors,
        ),
        ("heddle_calibration_ended", g, "First predictions whose trajectory ended.", ended),
        ("heddle_calibration_covered", g, "Of those, between p10 and p90.", covered),
    ]
