"""Who may call: tokens, passwords, the rights of users, and the number of calls that each may make.

Start: security.py
"""
