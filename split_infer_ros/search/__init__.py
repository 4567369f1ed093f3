"""Search strategies, their cost model, spaces of configurations, and dynamic programming. All is pure arithmetic."""
