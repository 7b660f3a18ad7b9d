"""Strategies that divide the parameters over ranks with torch's fully_shard: zero2, zero3 and hsdp.

Start: sharded.py
"""
