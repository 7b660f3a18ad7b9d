"""PURE: every way in which the scheduler's state may change.

A transition takes the records, what happened and the time, and returns a Change; it writes nothing itself. The store
commits changes one after another, so a transition always sees the effects of all before it. What a transition finds
already done, or too late, it answers with an empty Change: all of them may be repeated.
"""
