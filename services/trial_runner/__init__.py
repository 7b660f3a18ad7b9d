"""The trial runner: one process for each (allocation, agent).

It prepares, starts, watches and ends the ranks of its machine, and reports on them. It trains nothing itself and
continues without scheduler and gateway.
Start reading in `runner.py`, whose `TrialRunner._live` has the steps in order. `crew.py`, `outcome.py` and
`patience.py` handle the ranks; `gang.py`, `rendezvous.py` and `vigil.py` the gang; `outlet.py`, `spool.py` and
`ingest.py` the delivery.
"""
