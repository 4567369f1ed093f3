"""Predicts what each memory policy costs a task on this machine, and chooses the cheapest (paper 003, §IV)."""
