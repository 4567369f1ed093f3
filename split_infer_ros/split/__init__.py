"""Where a model can be split, what each split point costs, and how one is chosen while frames flow."""
