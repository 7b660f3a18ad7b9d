"""Metrics of a trial: on one rank, and reduced over all ranks.

Start: metric.py
"""
