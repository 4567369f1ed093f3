"""The operators in which detectors end: batched over images and classes, with a defined order."""
