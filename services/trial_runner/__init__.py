"""The trial runner: one process for each (allocation, agent). It prepares, starts, watches and ends the ranks of its
machine, and reports on them. It trains nothing itself and continues without scheduler and gateway.

`TrialRunner._live` in `runner.py` has the steps in order, and `attempt_events.py` what happens to the attempt
meanwhile; README.md has the words and the invariants. `ranks/` holds the ranks of this machine, `gang/` the other
members, `watchdog/` the detection of hangs, and `delivery/` all that is sent.

Start: runner.py
"""
