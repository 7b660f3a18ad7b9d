"""The command line. One module for each group of commands; what they print is made by pure functions in `text` and
`summary`. Loads grpc, pydantic and rich only in the commands that need them, so that --help is quick."""
