"""The four programs and their common code; the folder itself has no module.

Start: scheduler/__main__.py
"""
