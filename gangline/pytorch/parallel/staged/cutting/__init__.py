"""Runs one part of a model: its own forward, in which units of other parts do nothing."""
