"""Measures the cost of a step: its phases, the machine's load, and torch's own profiler.

Start: profile.py
"""
