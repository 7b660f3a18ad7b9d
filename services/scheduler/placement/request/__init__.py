"""PURE: the planner's input and output: the snapshot, its queues, and the proposals of a policy.

Start: snapshot.py
"""
