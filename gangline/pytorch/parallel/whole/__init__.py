"""Strategies in which each rank holds the whole model: ddp and zero1.

Start: ddp.py
"""
