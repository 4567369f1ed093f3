"""Which memory features and images lie in, and whether there is enough of it."""
