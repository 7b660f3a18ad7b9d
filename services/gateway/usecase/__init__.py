"""What the gateway does, one class a topic, independent of gRPC and HTTP.

Both surfaces only translate: they authenticate, call one method here with the principal and its arguments, and map the
records it returns. Errors for people are GanglineErrors.
"""
