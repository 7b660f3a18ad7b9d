"""The trial runner: one process for each (allocation, agent). It prepares, starts, watches and ends the ranks of its
machine, and reports on them; it trains nothing itself and goes on without scheduler and gateway."""
