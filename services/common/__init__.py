"""Floor 2: code that the four services share. Never imported by gangline/."""
