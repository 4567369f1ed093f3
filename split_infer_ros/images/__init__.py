"""Image data as ROS messages carry it."""
