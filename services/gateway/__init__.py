"""The gateway: what users reach by gRPC and HTTP, and where trial runners leave their logs and metrics."""
