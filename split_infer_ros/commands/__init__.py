"""What users run without ROS; each module is one command."""
