"""What the requests of all callers share: caches, limits, the table of tunnels, views, and how callers follow changes.

No module here knows a caller: the use case that calls it has checked what the caller may do.

Start: view.py
"""
