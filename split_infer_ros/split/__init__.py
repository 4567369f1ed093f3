"""Where a model can be cut (cuts), and the two halves of a cut (halves)."""
