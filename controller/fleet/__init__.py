"""Ports to engines and launchers, and their adapters."""
