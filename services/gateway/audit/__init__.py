"""The audit log: which calls are recorded, what a record has of a change, and the buffer in front of the database.

Start: action.py
"""
