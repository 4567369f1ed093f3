"""Makes models compute in int8: calibrates them on images, and judges the results on others."""
