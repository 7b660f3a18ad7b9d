"""The ranks of one machine: their start, output, messages and end.

Start: rank_group.py
"""
