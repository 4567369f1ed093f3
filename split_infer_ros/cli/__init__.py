"""Commands that need no ROS. Each has a module; ``command`` holds what they share."""
