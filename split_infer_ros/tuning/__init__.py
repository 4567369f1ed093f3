"""What was measured on this machine, kept for good (database, record) and under which key (key)."""
