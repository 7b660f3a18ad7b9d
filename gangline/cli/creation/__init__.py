"""`experiment create`: one submit, its request id on disk, the question before a repetition, and the preview of a
search.

Start: submit.py
"""
