"""The use cases of the gateway, one class for each topic, independent of gRPC and HTTP. Each is made for one checked
caller (`services/gateway/usecase/bundle.py`), so none can be called without a check.

Both surfaces only translate: they authenticate, make the use cases for the principal, call one method here with its
arguments, and map the records that it returns. Errors for users are GanglineErrors.

Start: bundle.py
"""
