"""PURE: changes of users and of their tokens.

Start: user_change.py
"""
