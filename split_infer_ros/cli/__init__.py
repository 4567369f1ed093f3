"""Commands that need no ROS; each module is one command."""
