"""Memory that CPU and GPU share: slot pools, leases on their slots, and the layout of features in a slot."""
