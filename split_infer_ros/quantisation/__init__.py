"""Makes models compute in int8: calibrates them on some images, and compares int8 with float32 on other images."""
