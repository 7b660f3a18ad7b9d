"""The strategy `pipeline`: divides a model into consecutive parts, one or two for each rank, and sends microbatches
through them.

Start: pipeline.py
"""
