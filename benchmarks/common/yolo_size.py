"""The input size of the benchmarks' detector.

It is here because the network's module imports torch, which takes seconds.
"""

HEIGHT, WIDTH = 480, 640  # pixels
