"""What everything else runs on: CUDA's run-time API, streams and captures."""
