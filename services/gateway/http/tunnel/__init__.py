"""Connections to shells and notebooks: what passes, and how HTTP, WebSockets and SSH are carried.

Start: proxy.py
"""
