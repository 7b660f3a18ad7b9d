"""PURE: what lies in the cluster's storage: names and formats of checkpoints and outputs, URLs that may be opened, and
failures that a trial waits for.

Start: manifest.py
"""
