"""Decides which operator of a model runs on which processor, and what is copied between them (§3.1.2).

No frame passes through this package. The command ``place`` prints its plan, and a benchmark measures the plan.
"""
