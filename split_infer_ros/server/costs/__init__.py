"""Measures what executions cost on this machine, between frames, and keeps the costs."""
