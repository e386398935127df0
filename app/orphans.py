"""How does a process of a stack end when its parent is gone, even to kill -9?

It watches the parent's pid. Standard library only: the command imports this before it knows whether
any extra is installed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Final

ORPHANS_END: Final = "HEDDLE_DIE_WITH_PARENT"
"""The environment variable by which a supervisor asks for it."""


def die_with_parent() -> None:
    """End this process soon after its parent ends, if a supervisor started the family."""
    if os.environ.get(ORPHANS_END):
        parent = os.getppid()
        threading.Thread(target=_watch, args=(parent,), name="heddle-orphan", daemon=True).start()


def _watch(parent: int) -> None:
    # Polled, because PR_SET_PDEATHSIG fires when the *thread* that forked ends, and engines are
    # launched from threads of a pool.
    while os.getppid() == parent:
        time.sleep(0.4)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(3.0)
    os._exit(1)
