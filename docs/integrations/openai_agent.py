"""An agent with the `openai` package: nothing of Heddle but the address. openai_agent.py [URL]"""

import asyncio
import sys
from typing import Any

import openai

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8600"


async def agent(name: str) -> None:
    """Three steps with a tool between them; the path says whose they are."""
    messages: list[Any] = [{"role": "user", "content": "Fix the failing test."}]
    async with openai.AsyncOpenAI(base_url=f"{URL}/t/{name}/v1", api_key="none") as client:
        for step in range(3):
            answer = await client.chat.completions.create(
                model="default", messages=messages, max_tokens=40
            )
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            await asyncio.sleep(0.2)
            messages.append({"role": "user", "content": f"tests still fail ({step})"})


async def main() -> None:
    """Four samples of one prompt."""
    await asyncio.gather(*(agent(f"openai-{sample}") for sample in range(4)))


asyncio.run(main())
