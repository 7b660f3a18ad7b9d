"""Commands, notebooks and shells on slots, and the list of all that runs or waits.

Start: command.py
"""
