"""The base of all computation: CUDA's run-time API, streams, captures, threads, files and settings of the process."""
