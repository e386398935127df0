"""How rarely may Python's collector of cycles stop a process that serves?

What exists when serving begins lives as long as the process and is never looked at again; young
objects are looked at every 50,000, which is every few hundred steps: by default it is every 700,
and with 6,400 live trajectories each full look stops every step for 50 ms. Limit: for a process of
its own, never for a test's.
"""

from __future__ import annotations

import gc


def look_rarely() -> None:
    """From now on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
