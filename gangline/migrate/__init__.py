"""`gangline migrate`: the check of a folder that was written for Determined, and the settings made from Determined's
cluster files. It runs nothing.

Start: check.py
"""
