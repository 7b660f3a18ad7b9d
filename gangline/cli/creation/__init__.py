"""Creates experiments for the CLI: submits once, remembers requests on disk, and asks before a repetition."""
