"""Batched detection operators with a defined order of results (vision-specific operators, §3.1).

A frame passes through ``box_nms``, ``multibox_decode``, ``roi_align`` and the scheduled convolutions. No frame passes
through ``prefix_sum`` or ``segmented_argsort``: the paper describes them, and only tests and benchmarks call them.
"""
