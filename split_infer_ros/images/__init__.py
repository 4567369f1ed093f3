"""Decodes the image data in ROS messages."""
