"""Decoding of the image data that ROS messages carry."""
