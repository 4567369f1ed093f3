"""Commands that need no ROS. Each command has a module. The module ``command`` holds what they share."""
