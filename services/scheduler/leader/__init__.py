"""One scheduler's way through leadership: standing by, leading for a term, and the cycle of a term.

Start: cycle.py
"""
