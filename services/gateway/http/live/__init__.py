"""One stream of server-sent events with all that changes on a page: rows of tables, agents, the queue, and metrics.

Start: stream.py
"""
