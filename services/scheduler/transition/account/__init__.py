"""Changes of users and of their tokens."""
