"""What executions cost on this machine: measured between frames, and kept."""
