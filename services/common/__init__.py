"""Floor 2: what the four services share. Never imported by gangline/."""
