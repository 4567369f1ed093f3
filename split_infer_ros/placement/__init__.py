"""Which operator of a model runs on which processor, and what is copied between them (§3.1.2)."""
