"""Benchmarks, each with a peer's figures from the same run. Every file with a `main` is a program: `python -m
benchmarks.NAME`. `process.run_benchmark` calls it, so that its processes end with it."""
