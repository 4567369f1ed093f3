"""Reads point clouds in ROS messages, and finds clusters of points in them."""
