"""The figures of paper 003 that the simulated board is fitted to, and those that judge it."""

from __future__ import annotations

from split_infer_ros.buffers.policy import Policy

D, M = Policy.DEVICE, Policy.MANAGED

# Table I: peak memory of one, two and three YOLOs on a TX2, in MB. None means that the third one failed.
PEAK_MB: dict[Policy, tuple[float | None, ...]] = {D: (2745.0, 5274.0, None), M: (1311.0, 2524.0, 3779.0)}
# Section III-B: one YOLO under D takes 38.6 % of the memory that the board shares.
BOARD_MB = 2745.0 / 0.386

# Table II: GPU utilisation of two instances on a TX2, by the policies of the two.
PAIRS = ((D, M), (M, M), (D, D))
UTILISATION = {
    "NW": {(D, M): 0.77, (M, M): 0.68, (D, D): 0.81},
    "Gaussian": {(D, M): 0.71, (M, M): 0.68, (D, D): 0.78},
    "YOLO": {(D, M): 0.92, (M, M): 0.81, (D, D): 0.92},
}

# Table IV: the number of kernels. The drone's detector is a YOLO (section V-C).
KERNELS = {"NW": 320, "Gaussian": 1024, "YOLO": 180}

# Section II-A: the TX2's memory moves up to 50 GB/s. Section V-B: the Xavier's is 2.5 times as fast.
MEMORY_MS_PER_BYTE = 1 / 50e6
XAVIER_MEMORY = 2.5

# What judges the board. Table V: GPU utilisation under D, MO and CO.
TABLE_V = {
    "benchmarks, TX2": {"D": 0.746, "MO": 0.562, "CO": 0.746},
    "benchmarks, AGX": {"D": 0.631, "MO": 0.573, "CO": 0.630},
    "drone, TX2": {"D": 0.706, "MO": 0.283},
}
# Section III-C, Fig. 3(b): the policies under which two instances end first.
FASTEST_PAIR = {"NW": (M, M), "Gaussian": (D, M), "YOLO": (D, M)}
# Section V-B: on the TX2, CO's mean time is 54.6 % below D's and 10.0 % below MO's.
MO_OVER_D = (1 - 0.546) / (1 - 0.100)
WITHIN = 0.05
