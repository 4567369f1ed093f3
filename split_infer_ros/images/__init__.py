"""Image data as ROS messages carry it, and how it becomes pixels."""
