"""`gangline simulate`: the planner on a snapshot file, and whole traces in virtual time. No cluster runs here."""
