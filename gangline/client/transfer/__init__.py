"""Folders on their way to the cluster and back: code, checkpoints, outputs.

Start: packing.py
"""
