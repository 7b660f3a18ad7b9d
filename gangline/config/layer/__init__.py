"""PURE: settings that an experiment inherits from its workspace, its project and a template: their look-up and their
checks. `gangline/config/merge.py` merges them.

Start: lookup.py
"""
