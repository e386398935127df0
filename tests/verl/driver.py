"""driver.py FOLDER: verl's own router code and agent loop through Heddle, in verl's environment.

Reads FOLDER/asked.json, writes FOLDER/said.json. Real: `get_router_handle`, `LLMServerClient`,
`FullyAsyncLLMServerClient`, `AgentLoopWorker`, `AgentLoopManager`, `ToolAgentLoop`, its parser and
its tokenization, Ray and its actors. Emulated: the engines behind the server actors.
"""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import numpy as np
import ray
import verl
from engine_actor import END_OF_CALL, Output, Server, SteppingServer
from hydra import compose, initialize_config_dir
from make_model import tokenizer
from transformers import Qwen3Config
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.utils.import_utils import load_class_from_fqn
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import get_router_handle

from heddle.controller.verl_plugin.manager import HeddleAgentLoopManager

LAST = 8_000
"""Tokens of an answer that takes long enough to be aborted in the middle."""
TOOL = '''
import time
from verl.tools.function_tool import function_tool

@function_tool
def look(key: str) -> str:
    """Look something up.

    Args:
        key: What to look up.
    """
    time.sleep(0.2)
    return "found " + key
'''


def model_in(folder: Path) -> Path:
    """A tokenizer and a configuration: nobody here needs weights."""
    out = folder / "model"
    tokens = tokenizer()
    tokens.save_pretrained(out)
    Qwen3Config(
        vocab_size=len(tokens), num_hidden_layers=2, architectures=["Qwen3ForCausalLM"]
    ).save_pretrained(out)
    return out


def configuration(folder: Path, router_yaml: Path, page: list[str], turns: int) -> Any:
    """verl's own defaults, with what a person sets for this and what the page tells them to."""
    tool = folder / "tool.py"
    tool.write_text(TOOL)
    rollout = {
        "prompt_length": 256,
        "response_length": 512,
        "calculate_log_probs": False,
        "agent.num_workers": 1,
        "agent.default_agent_loop": "tool_agent",
        "multi_turn.enable": True,
        "multi_turn.format": "hermes",
        "multi_turn.max_assistant_turns": turns,
        "multi_turn.function_tool_path": tool,
    }
    words = [f"actor_rollout_ref.rollout.{key}={value}" for key, value in rollout.items()]
    words += [word.replace("docs/integrations/verl_router.yaml", str(router_yaml)) for word in page]
    words.append(f"actor_rollout_ref.model.path={model_in(folder)}")
    there = Path(str(verl.__file__)).parent / "trainer" / "config"
    with initialize_config_dir(str(there), version_base=None):
        return compose("ppo_trainer", overrides=words)


class InProcess:
    """An agent loop worker that is called like an actor: another process imports verl for 15 s."""

    def __init__(self, worker: AgentLoopWorker) -> None:
        self._worker = worker
        self.generate_sequences = self

    async def remote(self, chunk: DataProto) -> DataProto:
        return await self._worker.generate_sequences(chunk)


def manager_of(config: Any, client: LLMServerClient) -> HeddleAgentLoopManager:
    """The manager that the settings name, with its one worker in this process."""
    named = load_class_from_fqn(config.actor_rollout_ref.rollout.agent.agent_loop_manager_class)
    assert named is HeddleAgentLoopManager
    manager = named(config, client)
    manager.agent_loop_workers = [InProcess(AgentLoopWorker(config, client))]
    return manager


def batch(groups: int, samples: int, step: int) -> DataProto:
    """n samples of each prompt, as the trainer repeats them."""
    prompts = [[{"role": "user", "content": f"trajectory step {g}"}] for g in range(groups)]
    raw = np.array([p for p in prompts for _ in range(samples)] + [None], dtype=object)[:-1]
    index = np.repeat(np.arange(groups), samples)
    return DataProto(
        batch=None,
        non_tensor_batch={"raw_prompt": raw, "index": index},
        meta_info={"global_steps": step, "validate": False},
    )


async def rollouts(asked: dict[str, Any], config: Any, router: Any, servers: list[Any]) -> Any:
    """One batch through the manager, one that nobody announces, one that the trainer aborts."""
    client = LLMServerClient(config, load_balancer_handle=router)
    manager = manager_of(config, client)
    output = await manager.generate_sequences(batch(asked["groups"], asked["samples"], step=7))
    said: dict[str, Any] = {"timing": {k: float(v) for k, v in output.meta_info["timing"].items()}}
    said["turns"] = [int(n) for n in output.non_tensor_batch["__num_turns__"]]
    await manager.agent_loop_workers[0].remote(batch(1, 2, step=8))
    said["aborted"] = await aborted(config, router, servers)
    return said


async def aborted(config: Any, router: Any, servers: list[Any]) -> dict[str, Any]:
    """A fully-async step that the trainer aborts for a weight sync, and that goes on afterwards."""
    client = FullyAsyncLLMServerClient(config, load_balancer_handle=router)
    said_before = [7] * 58 + [END_OF_CALL] * 2
    asked = {"prompt_ids": said_before, "sampling_params": {"max_tokens": LAST}}
    step = asyncio.ensure_future(client.generate("resumed", **asked))
    while 60 not in [seen["prompt"] for seen in await seen_by(servers)]:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    await asyncio.gather(*(server.abort_all_requests.remote() for server in servers))
    await asyncio.sleep(0.3)
    await asyncio.gather(*(server.set_global_steps.remote(2) for server in servers))
    output = await step
    after = {"prompt_ids": said_before + [7] * 500, "sampling_params": {"max_tokens": 20}}
    return {
        "tokens": len(output.token_ids),
        "stop": output.stop_reason,
        "versions": [output.extra_fields[f"{end}_global_steps"] for end in ("min", "max")],
        "after": len((await client.generate("resumed", **after)).token_ids),
    }


async def seen_by(servers: list[Any]) -> list[dict[str, Any]]:
    """Every step that a server got."""
    return [seen for server in servers for seen in await server.what_was_seen.remote()]


def words() -> tuple[list[list[int]], list[int]]:
    """What the model says: two tool calls, then a long last word."""
    tokens = tokenizer()
    call = '<tool_call>{"name": "look", "arguments": {"key": "step"}}</tool_call>'
    return [tokens.encode(call)] * 2, [tokens.encode("reward")[0]] * LAST


def start_ray(tries: int = 5) -> None:
    """Ray gives its own node 30 s to start and has no setting for it: a busy machine needs more."""
    for left in reversed(range(tries)):
        try:
            ray.init(
                # Never somebody else's cluster that happens to run here.
                address="local",
                num_cpus=8,
                include_dashboard=False,
                object_store_memory=200 << 20,
            )
        except Exception:  # Ray raises no narrower one here
            ray.shutdown()
            if not left:
                raise
        else:
            return


def main(folder: Path) -> None:
    """Everything, in one Ray."""
    asked = json.loads((folder / "asked.json").read_text())
    missing = set(TokenOutput.model_fields) ^ set(Output.__dataclass_fields__)
    assert not missing, f"verl's TokenOutput has changed: {missing}"
    router_yaml = folder / "router.yaml"
    router_yaml.write_text(asked["yaml"])
    config = configuration(folder, router_yaml, asked["settings"], turns=3)
    start_ray()
    calls, last = words()
    kinds = [ray.remote(kind) for kind in (SteppingServer, Server)]
    servers = {
        url.partition("://")[2]: kinds[n % 2].remote(url, calls, last)
        for n, url in enumerate(asked["engines"])
    }
    path = config.actor_rollout_ref.rollout.router_config_path
    router = get_router_handle(servers=servers, router_config_path=path)
    began = time.monotonic()
    said = asyncio.run(rollouts(asked, config, router, list(servers.values())))
    ray.get(router.clear_sticky_cache.remote())
    said["wall_s"] = time.monotonic() - began
    said["status"] = ray.get(router.get_status.remote())
    said["seen"] = asyncio.run(seen_by(list(servers.values())))
    (folder / "said.json").write_text(json.dumps(said, default=str))
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
