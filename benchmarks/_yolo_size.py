"""The size of the input of the benchmarks' detector. The network's own module imports torch, which costs seconds."""

HEIGHT, WIDTH = 480, 640  # pixels
