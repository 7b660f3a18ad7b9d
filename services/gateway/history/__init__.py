"""Logs, metrics and progress in SQL, and the cursors that make sure that a record is stored once, however often it is
sent."""
