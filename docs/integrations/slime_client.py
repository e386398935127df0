"""What slime sends to its router: token ids and a session's key. slime_client.py [URL]"""

import sys
from concurrent.futures import ThreadPoolExecutor

import httpx

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8600"


def sample(number: int) -> None:
    """One sample of two turns."""
    ids = list(range(1000, 1200))
    for _ in range(2):
        reply = httpx.post(
            f"{URL}/generate",
            json={"input_ids": ids, "sampling_params": {"max_new_tokens": 40}},
            headers={"X-SMG-Routing-Key": f"slime-{number}"},
            timeout=120,
        )
        ids += reply.raise_for_status().json()["output_ids"]


with ThreadPoolExecutor(4) as pool:
    list(pool.map(sample, range(4)))
