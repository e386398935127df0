"""A trainer that calls engines itself and tells Heddle of it. traced_trainer.py [OTLP URL]"""

import sys
import time

from heddle.collector import tracing

endpoint = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:4318"
tracing.configure(endpoint, run="my-run", rollout="7")


@tracing.tool("pytest")
def run_tests() -> str:
    """A tool call of whichever trajectory it is called in."""
    time.sleep(0.05)
    return "1 failed"


for sample in range(4):
    with tracing.trajectory(f"traced-{sample}", group="prompt-12", sample_index=sample) as it:
        for _ in range(2):
            with tracing.step(model="default") as step:
                time.sleep(0.02)
                step.usage(input_tokens=120, output_tokens=30)
            run_tests()
        it.finish(reward=1.0, outcome="finished")
