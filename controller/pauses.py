"""What may stop a process that serves, and for how long?

Python's collector of cycles: what exists when serving begins lives as long as the process and is
never looked at again; young objects are looked at every 50,000, which is every few hundred steps:
by default it is every 700, and with 6,400 live trajectories each full look stops every step for 50
ms. And threads that compute: one that decides on 6,400 trajectories gives the interpreter back
after a millisecond instead of five, so that the event loop stands still for at most 10 ms, not 22.
Limit: for a process of its own, never for a test's.
"""

from __future__ import annotations

import gc
import sys


def keep_short() -> None:
    """From now on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    sys.setswitchinterval(0.001)
