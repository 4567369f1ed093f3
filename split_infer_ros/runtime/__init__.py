"""What all computation runs on: CUDA's run-time API, streams, captures, worker threads, settings of the process."""
