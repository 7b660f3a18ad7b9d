"""The protobuf protocol: the mapping between messages and domain records, and errors and limits of gRPC calls.

Start: wire.py
"""
