"""The operators in which detectors end: batched over images and classes, with a defined order (vision ops, §3.1)."""
