"""The agent's connection to the leading scheduler: its stream, its heartbeats, and the search for the next leader.

Start: leader_stream.py
"""
