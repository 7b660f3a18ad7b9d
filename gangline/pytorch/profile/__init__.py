"""What a step costs: its phases, the machine's load, and torch's own profiler."""
