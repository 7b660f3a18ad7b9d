"""How a rank reads and writes checkpoint storage: whole folders, streams, and the wait for a storage that
takes nothing.

Start: storage.py
"""
