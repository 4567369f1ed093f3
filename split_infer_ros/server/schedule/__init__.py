"""What waits and what runs next: pure policies over numbers, without a clock."""
