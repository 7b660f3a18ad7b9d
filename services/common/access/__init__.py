"""Who may call: tokens, passwords, the number of calls of each caller, and files looked at with a user's
rights.

Start: security.py
"""
