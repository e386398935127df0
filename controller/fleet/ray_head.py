"""What does a Ray cluster of one machine need to run, and nothing besides?

`ray start --head` imports Serve and pandas, and starts a client proxy and a dashboard that nobody
asks for: 9 of the 16 CPU seconds that a cluster took to come up. This child starts the store of the
cluster's state and one raylet with its agents through the class that `ray start` itself uses.
Limit: the class is Ray's own matter; a Ray that names the dashboard's start otherwise gets one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Final

LOOK_S: Final = 1.0


def main(settings: dict[str, Any]) -> int:
    """Start the node, and stay until a process of it ends; `settings` are those of RayParams."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class _Head(Node):
        def start_api_server(self, **_: Any) -> None:
            """Nobody looks at Ray's pages; three seconds of imports, and they are waited for."""

    node = _Head(RayParams(**settings), head=True, shutdown_at_exit=True, spawn_reaper=True)
    while not (ended := node.dead_processes()):
        time.sleep(LOOK_S)
    sys.stderr.write(f"ended by itself: {', '.join(name for name, _ in ended)}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
