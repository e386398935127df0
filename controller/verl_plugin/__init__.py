"""Heddle inside a verl trainer: a router for `rollout.router_config_path` and its helpers."""
