"""Logs, metrics and progress in SQL, and the cursors by which a record is stored once however often it is sent."""
