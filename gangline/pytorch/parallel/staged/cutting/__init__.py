"""Runs one part of a model: its own forward, in which units of other parts do nothing. Finds what else the part needs,
and refuses what it cannot train.

Start: cut.py
"""
