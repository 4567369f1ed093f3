"""Batched detection operators with a defined order of results (paper 004, vision-specific operators, §3.1).

The operators are ``box_nms``, ``multibox_decode``, ``roi_align`` and the scheduled convolutions. The paper's segmented
argsort and prefix sum are kernels, which ``box_nms`` launches on a GPU.
"""
