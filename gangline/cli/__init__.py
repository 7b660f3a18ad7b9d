"""The command line. Each group of commands has a module; pure functions in `output.text` make the output. Loads
grpc, pydantic and rich only in the commands that need them, so that --help is quick."""
