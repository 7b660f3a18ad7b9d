"""The commands about users, passwords and tokens."""
