"""Everything that leaves a trial runner: reports to the scheduler, records to a gateway, and its own metrics.

Start: delivery.py
"""
