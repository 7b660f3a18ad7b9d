"""python -m gangline.cli, for where the console script is not on PATH."""

from gangline.cli.main import main

main()
