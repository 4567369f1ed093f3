"""Orders the requests that wait, and decides which run next. Its modules are pure policies: callers pass the time."""
