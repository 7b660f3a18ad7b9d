"""The start of a rank: from the forked process to the user's trial or script.

Start: entrypoint.py
"""
