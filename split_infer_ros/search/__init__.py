"""Search strategies, their cost model, spaces of configurations, dynamic programming: pure functions of numbers."""
