"""The gateway's file storage: code archives and checkpoints, and the deletion of files.

Start: storage.py
"""
