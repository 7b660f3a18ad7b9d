"""The command line: one module for each group of commands. Pure functions in `output/text.py` make the output, which
leaves through `output/terminal.py` alone: it escapes control characters of users' texts. Loads grpc, pydantic and rich
only in the commands that need them, so that --help is quick.

Start: main.py
"""
