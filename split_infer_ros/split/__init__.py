"""Where a model can be split, its partitions, what each split point costs, and the choice of one while frames flow."""
