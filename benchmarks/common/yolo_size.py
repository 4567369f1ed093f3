"""The input size of the benchmarks' detector.

The size has a module of its own, because the network's module imports torch, which takes seconds.
"""

HEIGHT, WIDTH = 480, 640  # pixels
