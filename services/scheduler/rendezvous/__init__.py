"""The rendezvous of a gang: the pure state machine, the pure choice of a network, and the coordinator that runs
them.

Start: gang.py
"""
