"""Starts training processes: the fork server, the nursery of a trial's ranks, the store of torch.distributed, and the
launch commands for scripts. It knows nothing of the services.

Start: nursery.py
"""
