"""Batched detection operators with a defined order of results (vision-specific operators, §3.1).

A frame passes through ``box_nms``, ``multibox_decode``, ``roi_align`` and the scheduled convolutions. Only tests and
benchmarks call the functions ``prefix_sum`` and ``segmented_argsort``, which the paper describes. On a GPU, ``box_nms``
launches their kernels.
"""
