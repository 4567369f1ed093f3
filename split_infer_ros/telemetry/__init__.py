"""Counters, percentiles, sensors and traces: how the package observes itself and its machine."""
