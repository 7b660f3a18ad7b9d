"""PURE: searchers: which trials an experiment makes, with which hyperparameters, and when it has made enough.

A searcher is told events and answers with operations. It has no clock, no chance of its own and no memory beyond the
events: the same configuration, seed and events give the same operations, so a new leader replays the log and goes on.
Adding one is a file here and a line in `registry`. services.scheduler.transition.search tells the events and does what
is asked.
"""
