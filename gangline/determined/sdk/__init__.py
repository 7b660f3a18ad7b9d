"""`determined.experimental`: the names of the SDK of Determined, over that of Gangline.

Start: experimental.py
"""
