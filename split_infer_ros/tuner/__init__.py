"""What tuning tries on models: declared spaces, trials in a process of their own, the search, and what came of it."""
