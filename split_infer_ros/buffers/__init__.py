"""Memory that CPU and GPU both see: pools of slots, the leases on them, and how features lie in a slot."""
