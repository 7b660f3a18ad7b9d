"""The CLI's output: the terminal, tables and JSON, and the texts about experiments and jobs."""
