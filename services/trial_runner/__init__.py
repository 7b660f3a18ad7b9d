"""The trial runner: one process for each (allocation, agent).

It prepares, starts, watches and ends the ranks of its machine, and reports on them. It trains nothing itself and
continues without scheduler and gateway.
Start reading in README.md and in `runner.py`, whose `TrialRunner._live` has the steps in order. `ranks/` holds the
ranks of this machine, `gang/` the other members, `watchdog/` the detection of hangs, and `delivery/` all that is sent.
"""
