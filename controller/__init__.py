"""Decisions: what to do about it. Routes every step to an engine and steers the fleet."""
