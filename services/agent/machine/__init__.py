"""The agent's machine: its name, network interfaces, state directory, and the metrics about it."""
