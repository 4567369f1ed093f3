"""The permanent database of measurements, and the key that decides which records apply to this machine."""
