"""The trainer: the training loop, evaluation, the schedule, reports, and checks while it runs.

Start: loop.py
"""
