"""What does the emulated engine say of a request, of itself and of its load?

SGLang 0.5.23's field names; times are fleet time (UTC seconds of the clock the stack shares).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from heddle.controller.emulator.cache import Ids
from heddle.controller.emulator.engine import Engine
from heddle.controller.emulator.loads import Loads
from heddle.controller.emulator.parse import text_of
from heddle.controller.emulator.request import Finished, Request
from heddle.controller.emulator.stored import StoredEngine

VERSION: Final = "0.5.23"
Stamp = Callable[[float], float]


def meta_info(done: Finished, stamp: Stamp) -> dict[str, Any]:
    """Everything sglang.md 1.3 lists, as with --enable-metrics."""
    completion = len(done.output_ids)
    entry_s = done.at_s if done.entry_s is None else done.entry_s
    first_s = done.at_s if done.prefill_end_s is None else done.prefill_end_s
    decode_s = done.at_s - first_s
    return {
        "id": done.rid,
        "finish_reason": finish_reason(done),
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": completion,
        "cached_tokens": done.cached_tokens,
        "cached_tokens_details": {
            "device": done.cached_tokens - done.host_tokens,
            "host": done.host_tokens,
        },
        "reasoning_tokens": 0,
        "weight_version": done.weight_version,
        "num_retractions": done.retractions,
        "e2e_latency": done.at_s - done.arrival_s,
        "queue_time": done.queue_s,
        "forward_entry_time": stamp(entry_s),
        "prefill_finished_time": stamp(first_s),
        "request_received_ts": stamp(done.arrival_s),
        "api_server_dispatch_finish_ts": stamp(done.arrival_s),
        "response_sent_to_client_ts": stamp(done.at_s),
        "request_finished_ts": stamp(done.at_s),
        "first_token_latency": first_s - done.arrival_s,
        "decode_throughput": (completion - 1) / decode_s if decode_s > 0 else None,
    }


def finish_reason(done: Finished) -> dict[str, Any]:
    """`finish_reason` as SGLang says it."""
    if done.reason == "length":
        return {"type": "length", "length": len(done.output_ids)}
    if done.reason == "stop":
        return {"type": "stop", "matched": 151645}
    return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


def generated(done: Finished, request: Request, stamp: Stamp) -> dict[str, Any]:
    """The reply of /generate."""
    return {
        "text": text_of(done.output_ids) if request.text else "",
        "output_ids": done.output_ids,
        "meta_info": meta_info(done, stamp),
    }


def partial(request: Request, ids: Ids, text: str) -> dict[str, Any]:
    """One event of a /generate stream: everything so far, as SGLang streams by default."""
    meta = {
        "id": request.rid,
        "finish_reason": None,
        "prompt_tokens": len(request.ids),
        "completion_tokens": len(ids),
    }
    return {"text": text, "output_ids": ids, "meta_info": meta}


def usage(done: Finished) -> dict[str, Any]:
    """OpenAI usage with cached tokens."""
    completion = len(done.output_ids)
    return {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": done.prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
    }


def loads(engine: Engine, now_s: float, stamp: Stamp) -> dict[str, Any]:
    """GET /v1/loads."""
    core = _core(engine, engine.loads(now_s))
    return {
        "timestamp": stamp(now_s),
        "version": VERSION,
        "dp_rank_count": 1,
        "accelerator": engine.config.system,
        "num_accelerators": engine.config.degree,
        "loads": [core],
        "aggregate": {
            "total_running_reqs": core["num_running_reqs"],
            "total_waiting_reqs": core["num_waiting_reqs"],
            "total_reqs": core["num_running_reqs"] + core["num_waiting_reqs"],
            "avg_token_usage": core["token_usage"],
        },
    }


def _core(engine: Engine, load: Loads) -> dict[str, Any]:
    count = engine.counters
    seen = count.cached_tokens + count.prompt_tokens
    busy_s = count.prefill_s + count.decode_s
    return {
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_waiting_uncached_tokens": load.waiting_tokens,
        "num_used_tokens": load.active_tokens,
        "num_active_tokens": load.active_tokens,
        "num_total_tokens": load.active_tokens + load.waiting_tokens,
        "max_total_num_tokens": load.capacity_tokens,
        "max_running_requests": engine.config.max_running,
        "token_usage": round(load.active_tokens / load.capacity_tokens, 4),
        "gen_throughput": count.generated_tokens / busy_s if busy_s else 0.0,
        "cache_hit_rate": count.cached_tokens / seen if seen else 0.0,
        "utilization": round(load.running / engine.config.max_running, 4),
        "total_prefill_uncached_tokens": count.prompt_tokens,
        "total_prefill_busy_us": int(count.prefill_s * 1e6),
        "queues": {
            "waiting": load.waiting,
            "grammar": 0,
            "paused": load.waiting if load.paused else 0,
            "retracted": engine.scheduler.retracted,
        },
    }


def server_info(engine: Engine, port: int, lag_s: float = 0.0) -> dict[str, Any]:
    """GET /server_info: the settings a controller reads, and the hash of this engine's truth.

    `clock_lag_s`: the most fleet seconds that something was handed out after it was due.
    """
    config = engine.config
    return {
        "version": VERSION,
        "emulated": True,
        "truth_hash": engine.truth.hash,
        "model_path": config.model,
        "served_model_name": config.model,
        "tp_size": config.degree,
        "port": port,
        "enable_metrics": True,
        "enable_memory_saver": True,
        "enable_priority_scheduling": config.priority_scheduling,
        "disable_priority_preemption": config.preemption_threshold is None,
        "priority_scheduling_preemption_threshold": config.preemption_threshold,
        "retraction_policy": config.retraction_policy,
        "schedule_policy": config.schedule_policy,
        "enable_hierarchical_cache": config.host is not None,
        "hicache_ratio": config.host.ratio if config.host else None,
        "hicache_write_policy": f"write_{config.host.write}" if config.host else None,
        "hicache_storage_backend": "file" if isinstance(engine, StoredEngine) else None,
        "radix_eviction_policy": "lru",
        "chunked_prefill_size": config.chunk_tokens,
        "context_length": config.context_tokens,
        "max_running_requests": config.max_running,
        "max_total_num_tokens": engine.scheduler.capacity,
        "worker_id": config.worker_id,
        "clock_lag_s": lag_s,
        "system": config.system,
        "internal_states": [
            {
                "world_size": config.degree,
                "effective_max_running_requests_per_dp": config.max_running,
                "heddle_priority_port": port,
                "memory_usage": {"token_capacity": engine.scheduler.capacity},
            }
        ],
    }


def model_info(engine: Engine) -> dict[str, Any]:
    """GET /model_info."""
    return {
        "model_path": engine.config.model,
        "tokenizer_path": engine.config.model,
        "is_generation": True,
        "weight_version": engine.weight_version,
    }


def idle_s(engine: Engine, now_s: float, since_s: float) -> float:
    """Fleet seconds without a pass; the one under way counts up to now, so that it never falls."""
    count, under_way = engine.counters, engine.under_way(now_s)
    busy_s = count.prefill_s + count.decode_s
    if under_way is not None:
        busy_s += under_way[2] - under_way[1]
    return max(0.0, now_s - since_s - busy_s)


def metrics(engine: Engine, now_s: float, since_s: float = 0.0) -> str:
    """GET /metrics: the sglang:* names that mean something here; idle time counts from then on."""
    load, count, s = engine.loads(now_s), engine.counters, engine.scheduler
    used = load.active_tokens
    label = f'model_name="{engine.config.model}",tp_rank="0",worker="{engine.config.worker_id}"'
    gauges = {
        "num_running_reqs": load.running,
        "num_queue_reqs": load.waiting,
        "token_usage": used / load.capacity_tokens,
        "num_used_tokens": used,
        "kv_used_tokens": used,
        "kv_evictable_tokens": load.evictable_tokens,
        "kv_available_tokens": load.capacity_tokens - load.used_tokens,
        "max_total_num_tokens": load.capacity_tokens,
        "decode_sum_seq_lens": sum(x.kv_tokens for x in s.running),
        "new_token_ratio": s.ratio,
    }
    if s.host is not None:
        gauges["hicache_host_used_tokens"] = s.host.used_tokens
        gauges["hicache_host_total_tokens"] = s.host.capacity
    totals = {
        "prompt_tokens_total": count.prompt_tokens + count.cached_tokens,
        "generation_tokens_total": count.generated_tokens,
        "cached_tokens_total": count.cached_tokens,
        "evicted_tokens_total": s.cache.evicted_tokens,
        "scheduler_idle_seconds_total": idle_s(engine, now_s, since_s),
        "num_requests_total": count.finished,
        "num_aborted_requests_total": count.aborted,
        "num_retracted_requests_total": s.retracted,
    }
    lines = [f"# TYPE sglang:{k} gauge\nsglang:{k}{{{label}}} {v}" for k, v in gauges.items()]
    lines += [f"# TYPE sglang:{k} counter\nsglang:{k}{{{label}}} {v}" for k, v in totals.items()]
    lines.append("# TYPE sglang:forward_execution_seconds_total counter")
    for category, seconds in (("prefill", count.prefill_s), ("decode", count.decode_s)):
        name = f'sglang:forward_execution_seconds_total{{{label},category="{category}"}}'
        lines.append(f"{name} {seconds}")
    return "\n".join(lines) + "\n"
