"""The cluster's state as the gateway mirrors it from etcd, tokens, and what is decided by it alone.

Start: mirror.py
"""
