"""Which attribute carries which fact, in which unit, and by which other names do senders call it?

One table, ours and versioned: the GenAI names moved out of OpenTelemetry's own packages and their
constants there are deprecated. `opentelemetry` and the standard library only: the trainer's library
imports this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

VERSION: Final = "1"
"""Of this table; a predictor trained under another version is refused."""

Kind = Literal["string", "int", "double", "bool", "strings"]

# Operations: the value of gen_ai.operation.name, or for what GenAI lacks the span's own name.
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EMBEDDINGS: Final = "embeddings"
EXECUTE_TOOL: Final = "execute_tool"
START: Final = "heddle.start"
MOVE: Final = "heddle.move"
PREDICT: Final = "heddle.predict"
ROLLOUT: Final = "heddle.rollout"
PLAN: Final = "heddle.plan"
SWITCH: Final = "heddle.switch"
REALLOCATE: Final = "heddle.reallocate"
"""One change of the layout as a whole; its phases are its children."""
DRAIN: Final = "heddle.drain"
"""One worker that takes no new steps until it is empty."""
REGROUP: Final = "heddle.regroup"
"""One worker between its last step and another engine that serves on its GPUs, phase by phase."""
WEIGHT_SYNC: Final = "heddle.weight_sync"
WORKER: Final = "heddle.worker"
"""One worker's lease to one rollout: from joining it (start marker) to leaving it."""

DOWN: Final = "heddle.down"
"""One worker that does not answer, from the first failure to its return."""
COUNTERS: Final = "heddle.counters"
"""One poll of one worker's own counters, zero-length; an error means it did not answer."""
SENDER: Final = "heddle.sender"
"""What one sender could not send so far, zero-length; sent when that number grows."""

TRAINER: Final = "heddle.trainer"
"""One phase of one trainer step: gen, reward, update_actor ...; `step` is the whole of it."""
DEVICE: Final = "heddle.device"
"""One sample of one GPU by its own counters (DCGM), zero-length."""
REPLAY: Final = "heddle.replay"
"""One rollout replayed under one policy on emulated engines, zero-length."""
ALIVE: Final = "heddle.alive"
"""An open trajectory that has had no news for a while, zero-length."""

HEDDLE_SPANS: Final = (
    START,
    MOVE,
    PREDICT,
    ROLLOUT,
    PLAN,
    SWITCH,
    REALLOCATE,
    DRAIN,
    REGROUP,
    WEIGHT_SYNC,
    WORKER,
    DOWN,
    COUNTERS,
    SENDER,
    TRAINER,
    DEVICE,
    REPLAY,
    ALIVE,
)
FLEET_OPS: Final = (REGROUP, REALLOCATE, WEIGHT_SYNC, DOWN)
"""What no trajectory does and engines stand still for; without a worker id it is all of them, but
for a reallocation, whose phases say who."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: its name on the wire, its column in the store, unit, meaning and aliases.

    `column` is empty where the store keeps the value only in the VARIANT of all attributes.
    A `double` in seconds (`_s`) whose column ends in `_ns` is stored as integer nanoseconds.
    """

    name: str
    kind: Kind
    column: str
    unit: str
    meaning: str
    aliases: tuple[str, ...] = ()


def _a(name: str, kind: Kind, column: str, unit: str, meaning: str, *aliases: str) -> Attribute:
    return Attribute(name, kind, column, unit, meaning, aliases)


ATTRIBUTES: Final = (
    # whose
    _a(
        "gen_ai.operation.name",
        "string",
        "op",
        "",
        "what the span is",
        "openinference.span.kind",
        "traceloop.span.kind",
        "langfuse.observation.type",
        "ai.operationId",
        "llm.request.type",
    ),
    _a("heddle.run.id", "string", "run_id", "", "the training experiment"),
    _a("heddle.rollout.id", "string", "rollout_id", "", "the generation phase of the run"),
    _a("heddle.rollout.kind", "string", "", "", "train or validate"),
    _a("heddle.group.id", "string", "group_id", "", "the prompt whose samples these are"),
    _a(
        "gen_ai.conversation.id",
        "string",
        "trajectory_id",
        "",
        "the trajectory, unique in its run",
        "heddle.trajectory.id",
        "session.id",
        "langfuse.session.id",
        "traceloop.association.properties.session_id",
        "gcp.vertex.agent.session_id",
    ),
    _a("heddle.sample.index", "int", "sample_index", "", "which sample of its group, from 0"),
    _a("heddle.step.index", "int", "step_index", "", "which LLM call of its trajectory, from 0"),
    _a("heddle.task", "string", "task", "", "task family, for example coding"),
    _a(
        "heddle.policy_version",
        "string",
        "policy_version",
        "",
        "version of the weights that sampled",
    ),
    _a("heddle.staleness", "int", "", "rollouts", "versions behind the trainer"),
    _a("heddle.reward", "double", "reward", "", "what the trainer gave the trajectory"),
    _a("heddle.truncated", "bool", "truncated", "", "ended by a limit: its length is censored"),
    _a("heddle.outcome", "string", "outcome", "", "finished, aborted, failed ..."),
    _a("heddle.starts", "string", "starts_span_id", "", "on a start marker: the span it announces"),
    _a("heddle.starts.op", "string", "starts_op", "", "on a start marker: that span's operation"),
    _a("heddle.clock.speed", "double", "clock_speed", "", "emulated seconds per second; 1 is real"),
    # where
    _a("heddle.worker.id", "string", "worker_id", "", "the engine"),
    _a("heddle.degree", "int", "degree", "GPUs", "GPUs of that engine"),
    _a(
        "gen_ai.agent.name",
        "string",
        "agent",
        "",
        "the agent",
        "agent.name",
        "gen_ai.workflow.name",
        "traceloop.workflow.name",
    ),
    _a(
        "gen_ai.request.model",
        "string",
        "model",
        "",
        "the model asked for",
        "gen_ai.response.model",
        "llm.model_name",
        "llm.request.model_name",
        "langfuse.observation.model.name",
        "ai.model.id",
    ),
    _a("gen_ai.provider.name", "string", "", "", "who serves it", "gen_ai.system", "llm.provider"),
    # how long: one step's time, in order; their sum is the step's span
    _a("heddle.held_s", "double", "held_ns", "s", "waiting in the controller"),
    _a(
        "heddle.queue_s",
        "double",
        "queue_ns",
        "s",
        "waiting in the engine",
        "gen_ai.latency.time_in_queue",
    ),
    _a(
        "heddle.prefill_s",
        "double",
        "prefill_ns",
        "s",
        "first forward to first token",
        "gen_ai.latency.time_in_model_prefill",
    ),
    _a(
        "heddle.decode_s",
        "double",
        "decode_ns",
        "s",
        "first token to last",
        "gen_ai.latency.time_in_model_decode",
    ),
    _a(
        "gen_ai.response.time_to_first_chunk",
        "double",
        "ttft_ns",
        "s",
        "request to first token",
        "gen_ai.latency.time_to_first_token",
    ),
    # how much
    _a(
        "gen_ai.usage.input_tokens",
        "int",
        "input_tokens",
        "tokens",
        "prompt, cached included",
        "gen_ai.usage.prompt_tokens",
        "llm.token_count.prompt",
        "llm.usage.prompt_tokens",
        "ai.usage.inputTokens",
        "ai.usage.promptTokens",
    ),
    _a(
        "gen_ai.usage.output_tokens",
        "int",
        "output_tokens",
        "tokens",
        "generated",
        "gen_ai.usage.completion_tokens",
        "llm.token_count.completion",
        "llm.usage.completion_tokens",
        "ai.usage.outputTokens",
        "ai.usage.completionTokens",
    ),
    _a(
        "gen_ai.usage.cache_read.input_tokens",
        "int",
        "cached_tokens",
        "tokens",
        "prompt tokens found in the prefix cache",
        "gen_ai.usage.cached_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.input_cached_tokens",
        "cache_read_input_tokens",
        "llm.token_count.prompt_details.cache_read",
        "ai.usage.cachedInputTokens",
    ),
    _a(
        "gen_ai.usage.cache_write.input_tokens",
        "int",
        "cache_write_tokens",
        "tokens",
        "prompt tokens written to the prefix cache",
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
        "llm.token_count.prompt_details.cache_write",
    ),
    _a(
        "gen_ai.usage.reasoning.output_tokens",
        "int",
        "reasoning_tokens",
        "tokens",
        "generated, of those the reasoning",
        "gen_ai.usage.reasoning_tokens",
        "llm.token_count.completion_details.reasoning",
        "ai.usage.reasoningTokens",
    ),
    _a("heddle.retractions", "int", "retractions", "", "times the engine took the step back"),
    _a(
        "gen_ai.response.finish_reasons",
        "strings",
        "finish_reason",
        "",
        "why generation ended",
        "gen_ai.response.finish_reason",
        "llm.finish_reason",
        "ai.response.finishReason",
    ),
    # what was decided
    _a("heddle.order.rank", "int", "order_rank", "", "place among the waiting, 0 first"),
    _a("heddle.priority", "int", "priority", "", "band sent to the engine, higher first"),
    _a("heddle.because", "string", "because", "", "the reason of the decision"),
    _a("heddle.predicted.p10", "double", "predicted_p10", "tokens", "remaining output, low"),
    _a("heddle.predicted.p50", "double", "predicted_p50", "tokens", "remaining output, middle"),
    _a("heddle.predicted.p90", "double", "predicted_p90", "tokens", "remaining output, high"),
    _a("heddle.predicted.steps", "double", "", "steps", "LLM calls still to come"),
    _a("heddle.predicted.tool_s", "double", "", "s", "the tool call under way, all of it"),
    _a("heddle.predictor.version", "string", "predictor_version", "", "who predicted"),
    # tools
    _a(
        "gen_ai.tool.name",
        "string",
        "tool_name",
        "",
        "the tool",
        "tool.name",
        "ai.toolCall.name",
        "mcp.method.name",
    ),
    _a(
        "gen_ai.tool.call.id",
        "string",
        "tool_call_id",
        "",
        "the call",
        "tool.id",
        "ai.toolCall.id",
    ),
    _a("heddle.tool.inferred", "bool", "inferred", "", "seen only as the gap between two steps"),
    _a("heddle.synthetic", "bool", "synthetic", "", "the time was drawn, not recorded"),
    _a("error.type", "string", "error_type", "", "what failed"),
    # moves
    _a("heddle.move.source", "string", "move_source", "", "worker left"),
    _a("heddle.move.target", "string", "move_target", "", "worker entered"),
    _a("heddle.move.method", "string", "move_method", "", "reprefill, l3_fetch or resume"),
    _a("heddle.move.tokens", "int", "move_tokens", "tokens", "context that had to travel"),
    _a("heddle.move.hit_tokens", "int", "move_hit_tokens", "tokens", "found cached on arrival"),
    _a("heddle.move.useless", "bool", "", "", "most of what was carried was not found"),
    _a("heddle.move.slow_down", "double", "", "", "share by which the target's streams slowed"),
    _a("heddle.hidden_s", "double", "hidden_ns", "s", "spent behind a tool call"),
    _a("heddle.exposed_s", "double", "exposed_ns", "s", "the trajectory waited for it"),
    # rollouts, plans, switches
    _a("heddle.gpus", "int", "gpus", "GPUs", "leased to the rollout"),
    _a("heddle.trajectories.expected", "int", "expected", "", "trajectories the rollout will have"),
    _a("heddle.trainer.step", "int", "trainer_step", "", "the trainer's global step"),
    _a("heddle.trainer.phase", "string", "", "", "gen, reward, update_actor ..., or step"),
    _a("heddle.policies", "string", "policies", "", "switches in force, as choice=policy,..."),
    _a("heddle.preset", "string", "preset", "", "the preset those switches equal, if any"),
    _a("heddle.layout", "string", "layout", "", "degrees of the workers, as 4,4"),
    _a("heddle.layout.before", "string", "", "", "degrees before a reallocation"),
    _a("heddle.layout.wanted", "string", "", "", "degrees a reallocation was to reach"),
    _a("heddle.phase", "string", "", "", "drain, stop, sleep, launch, wake, weights, flush ..."),
    _a("heddle.reallocate.state", "string", "", "", "done, rolled back or failed"),
    _a("heddle.predicted.cost_s", "double", "", "s", "what a reallocation was expected to take"),
    _a("heddle.predicted.gain_s", "double", "", "s", "what the new layout was expected to save"),
    _a("heddle.drain_s", "double", "", "s", "the longest wait for running steps"),
    _a("heddle.sleep_s", "double", "", "s", "the longest falling asleep, or end of an engine"),
    _a("heddle.wake_s", "double", "", "s", "the longest waking, or launch of an engine"),
    _a("heddle.load_s", "double", "", "s", "the longest load of weights"),
    _a(
        "heddle.predicted.makespan_s",
        "double",
        "predicted_makespan_s",
        "s",
        "what the plan expects",
    ),
    _a("heddle.solve_s", "double", "solve_s", "s", "what planning took"),
    _a("heddle.switch.choice", "string", "switch_choice", "", "order, admission, placement ..."),
    _a("heddle.switch.before", "string", "switch_before", "", "policy before"),
    _a("heddle.switch.after", "string", "switch_after", "", "policy after"),
    _a("heddle.switch.who", "string", "switch_who", "", "who asked"),
    _a("heddle.switch.why", "string", "switch_why", "", "the reason given"),
    # the fleet, and what engines count themselves
    _a("heddle.waited_for", "strings", "", "", "trajectories a weight sync waited for"),
    _a(
        "heddle.laws",
        "string",
        "",
        "ms",
        "decode laws, as degree:a,b,c;... (a + b*B + c*B*ktokens)",
    ),
    _a("heddle.folded", "int", "folded", "spans", "engine slices counted here, not kept each"),
    _a("heddle.sender.dropped", "int", "", "spans", "what the sender could not send so far"),
    _a("heddle.counter.forward_s", "double", "", "s", "forward execution so far"),
    _a("heddle.counter.idle_s", "double", "", "s", "without runnable or queued work so far"),
    _a("heddle.counter.retracted", "double", "", "", "requests taken back, KV full, so far"),
    _a("heddle.counter.running", "double", "", "", "requests running now"),
    _a("heddle.counter.queue", "double", "", "", "requests waiting now"),
    _a("heddle.counter.kv_usage", "double", "", "", "share of KV in use now"),
    _a("heddle.replay.of", "string", "", "", "what was replayed: RUN/ROLLOUT, file or workload"),
    _a("heddle.replay.cell", "string", "", "", "which of its seeds"),
    _a("heddle.replay.policy", "string", "", "", "preset[/choice=policy]"),
    _a("heddle.replay.makespan_s", "double", "", "s", "emulated, under that policy"),
    _a("heddle.replay.bound_s", "double", "", "s", "no policy ends sooner"),
    _a("heddle.replay.idle_gpu_s", "double", "", "GPU s", "of GPUs with nothing to do"),
    _a("heddle.replay.held_s", "double", "", "s", "trajectories waited in the controller"),
    _a("heddle.replay.moves", "int", "", "", "trajectories moved"),
    _a("heddle.replay.engines", "string", "", "", "hash of the emulated engines' parameters"),
    _a("heddle.device.host", "string", "", "", "the machine a GPU is in"),
    _a("heddle.device.gpu", "string", "", "", "which GPU of that machine"),
    _a("heddle.device.sm_active", "double", "", "", "share of SMs with work since the last sample"),
)

STEP_OPS: Final = (CHAT, "text_completion", "generate_content")
"""Operations that are one LLM call."""
USAGE_OPS: Final = (*STEP_OPS, EMBEDDINGS)
"""Operations whose token counts are their own; elsewhere they are sums over children."""
USAGE_COLUMNS: Final = (
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)

NAMES: Final = {a.name: a for a in ATTRIBUTES}
COLUMNS: Final = {a.column: a for a in ATTRIBUTES if a.column}
ALIASES: Final = {alias: a.name for a in ATTRIBUTES for alias in a.aliases}
