"""The trial API: the trial class, its context and callbacks, and the step of its optimizers.

Start: context.py
"""
