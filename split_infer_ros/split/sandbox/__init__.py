"""Model files of users are looked at in a process of their own, which has little memory, time and no network."""
