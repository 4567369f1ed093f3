"""Tasks: what a tenant may run in place of a network, such as a search for objects in point clouds."""
