"""The parts that several strategies use: their interface, broadcasts, norms, and the division of optimizer steps."""
