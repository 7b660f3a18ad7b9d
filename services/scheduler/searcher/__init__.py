"""PURE: searchers: which trials an experiment makes, with which hyperparameters, and when it has made enough.

A searcher receives events and answers with operations. It has no clock, no random source of its own and no memory
beyond the events: the same configuration, seed and events give the same operations, so a new leader replays the log and
continues. services.scheduler.transition.search passes the events and carries out the operations. CONTRIBUTING.md lists
the steps for a new searcher.

Start: interface.py
"""
