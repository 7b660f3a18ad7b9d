"""Logs, metrics, progress and usage in SQL, and the cursors that make sure that a record is stored once, however often
it is sent. `services/gateway/history/log_scan.py` reads filtered logs in bounded steps.

Start: store.py
"""
