"""Figures, each beside a peer's in the same run. Every file here is a program: `python -m benchmarks.NAME`."""
