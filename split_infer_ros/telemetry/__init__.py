"""Counters, percentiles, intervals, sensors and traces: how the package measures itself and its machine."""
