"""The gateway: the service that users reach by gRPC and HTTP, and to which trial runners deliver their logs and
metrics."""
