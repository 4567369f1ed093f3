"""Orders what waits and decides what runs next. All are pure policies over numbers, without a clock."""
