"""`gangline plan` and `parallelism: auto`: a trial's sizes, the memory and time of every strategy over its slots, and
the choice among them.

Start: rule.py
"""
