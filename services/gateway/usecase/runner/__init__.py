"""The use cases of trial runners, and of agents that deliver in their place.

Start: ingest.py
"""
