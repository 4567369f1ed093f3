"""Measures how many seconds executions cost on this machine. It measures between frames, and keeps the costs."""
