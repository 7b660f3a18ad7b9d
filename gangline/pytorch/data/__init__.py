"""The data of a trial: loaders, the division of records over ranks, batches, and random numbers.

Start: shard.py
"""
