"""The members of a gang: how they meet, how their runners are linked, and why a member ended.

Start: gang_links.py
"""
