"""Decides which operator of a model runs on which processor, and what is copied between them (§3.1.2).

No frame passes through this package: the command ``place`` shows its plan, and a benchmark measures it.
"""
