"""The commands about users, passwords and tokens.

Start: user.py
"""
