"""The HTTP server: its connections and their limits, and the middleware around all parts of the application.

Start: server.py
"""
