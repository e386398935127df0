"""A Ray cluster of logical GPUs on this machine, of which nodes can be killed."""

from __future__ import annotations

import contextlib
import warnings

SETTINGS = {"include_dashboard": False, "object_store_memory": 80 << 20, "num_cpus": 1}


@contextlib.contextmanager
def ray_cluster(*gpus):
    """One node for each number of GPUs; the first is the head."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = started({"num_gpus": gpus[0], **SETTINGS})
        nodes = [cluster.head_node, *(cluster.add_node(num_gpus=n, **SETTINGS) for n in gpus[1:])]
    try:
        yield cluster, nodes
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cluster.shutdown()


class Patient:
    """Ray's own module of time, for which a minute is six seconds: it gives its raylet 30 s, and
    a machine that runs other tests beside this one needs longer."""

    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    def monotonic(self):
        return self._real.monotonic() / 10


def started(head):
    """The head node."""
    from ray._private import node
    from ray.cluster_utils import Cluster

    node.time = Patient(node.time)
    return Cluster(initialize_head=True, head_node_args=head)
