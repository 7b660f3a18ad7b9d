"""Tensor fusion: which gradients are exchanged together, found by measuring while a trial trains, and remembered.

Start: tuner.py
"""
