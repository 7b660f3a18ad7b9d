"""The allocations of an agent: their journal, the processes that run them, and their way from start to final report.

Start: lifecycle.py
"""
