"""The hang watchdog: reads the progress of ranks, decides whether the gang hangs, and dumps stacks.

Start: hang_rule.py
"""
