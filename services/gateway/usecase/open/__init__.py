"""The use cases that need no user: logins, and what anybody may know of the cluster.

Start: login.py
"""
