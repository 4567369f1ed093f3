"""One model's way from image to detections: batcher, backbone stage, slot pool, head stage, and the ledger."""
