"""The connections that a service keeps: how many, and whose are closed when places run short.

Start: stranger_watch.py
"""
