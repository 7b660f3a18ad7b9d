"""The interface of all strategies, and the parts that several of them use: broadcasts, norms, and the division of
optimizer steps.

Start: strategy.py
"""
