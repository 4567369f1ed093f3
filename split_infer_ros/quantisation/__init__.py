"""Makes models compute in int8: calibrates them on some images, and judges the results on other images."""
