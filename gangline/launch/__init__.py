"""Starts training processes: the fork server, the nursery of a trial's ranks, the entrypoint in each rank and the
launch commands for scripts. It knows nothing of the services."""
