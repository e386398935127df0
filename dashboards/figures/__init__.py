"""Figures as functions: a frame in, a plotly figure out."""
