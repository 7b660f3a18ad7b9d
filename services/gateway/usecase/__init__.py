"""The use cases of the gateway, one class for each topic, independent of gRPC and HTTP.

Both surfaces only translate: they authenticate, call one method here with the principal and its arguments, and map the
records that it returns. Errors for users are GanglineErrors.

Start: experiment.py
"""
