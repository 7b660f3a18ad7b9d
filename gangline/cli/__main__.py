"""Runs python -m gangline.cli, for places where the console script is not on PATH."""

from gangline.cli.main import main

main()
