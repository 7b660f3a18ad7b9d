"""The agent's machine: its name, network interfaces, state directory, disk, and the metrics about it.

Start: host.py
"""
