"""The leader's side of agents and trial runners: sessions, leases, commands to them, and their reports.

Start: intake.py
"""
