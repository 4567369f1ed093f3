"""Batcher, backbone stage, ring, head stage: the way of a frame, and the ledger that accounts for it."""
