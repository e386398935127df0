"""A Ray cluster of logical GPUs on this machine, of which nodes can be killed."""

from __future__ import annotations

import contextlib
import warnings

import psutil

SETTINGS = {
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
    "object_store_memory": 80 << 20,
    "num_cpus": 1,
}


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


def started(head, tries=5):
    """The head node. Ray's raylet ends itself when its agents, two Python processes, need more than
    15 s to import (ray issue 65983): on a machine that runs other tests too that happens, and never
    to all tries."""
    from ray.cluster_utils import Cluster

    here = psutil.Process()
    for left in reversed(range(tries)):
        others = set(here.children(recursive=True))
        try:
            return Cluster(initialize_head=True, head_node_args=head)
        except Exception:
            for process in set(here.children(recursive=True)) - others:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if not left:
                raise
    return None
