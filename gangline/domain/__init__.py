"""PURE: the records, states and ids that all programs share, as plain frozen records. They mirror the messages of
protos/gangline/v1 field by field; gangline.protocol.wire maps between the two.

Start: state.py
"""
