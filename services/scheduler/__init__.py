"""The scheduler: decides which trial runs on which slots. One of several processes leads; the others stand by.

Start: __main__.py
"""
