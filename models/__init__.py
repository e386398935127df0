"""Beliefs: what we expect. Latency of engines and lengths of trajectories, learned from facts."""
