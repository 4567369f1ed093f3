"""Finds the fastest configuration of a model on this machine. Trials run in a process of their own."""
