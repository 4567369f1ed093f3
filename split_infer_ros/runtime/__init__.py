"""What all computation runs on: CUDA's run-time API, streams, captures, threads and settings of the process."""
