"""PURE: every way in which the scheduler's state may change.

A transition takes the records, an event and the time, and returns a Change; it writes nothing itself. The store commits
changes one after another, so a transition always sees the effects of all before it. A transition that is already done,
or too late, returns an empty Change: all of them may be repeated.

Start: place.py
"""
