"""Runs a whole cluster on one machine, for `gangline up` and `gangline down`. Linux only; it starts the services by
their console entry points and never imports them.

Start: up.py
"""
