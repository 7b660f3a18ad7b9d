"""The gateway's calls to the leading scheduler."""
