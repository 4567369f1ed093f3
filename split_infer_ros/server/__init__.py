"""Frames in, detections out, for one or many models: what waits, what runs next, batches, heads, and the ledger."""
