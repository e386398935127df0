"""Latency profiles that ship with the product: sweeps, fits and their attribution."""
