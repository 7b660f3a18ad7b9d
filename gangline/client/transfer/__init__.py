"""Folders on their way to the cluster and back: code, checkpoints, outputs, TensorBoard files.

Start: packing.py
"""
