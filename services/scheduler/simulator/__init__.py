"""`gangline simulate`: the planner on a snapshot file, and whole traces in virtual time. It needs no running
cluster.

Start: engine.py
"""
