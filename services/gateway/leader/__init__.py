"""The gateway's calls to the leading scheduler, and groups of submits.

Start: leader_client.py
"""
