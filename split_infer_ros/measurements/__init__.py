"""The database of measurements, which is kept for good, and the key under which a record counts."""
