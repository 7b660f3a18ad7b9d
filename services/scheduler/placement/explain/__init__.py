"""PURE: why a request waits, until when, and which change would start it.

Start: reason.py
"""
