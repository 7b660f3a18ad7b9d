"""The certificates of a cluster's own programs: a small authority, the folder with its files, and reading certificates.

Start: folder.py
"""
