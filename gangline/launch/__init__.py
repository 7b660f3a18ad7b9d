"""How training processes come to life: the fork server, the nursery of a trial's ranks, the entry point in each rank
and the launch commands for scripts. Knows nothing of the services."""
