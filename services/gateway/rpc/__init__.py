"""The gRPC surface: translates between gateway.proto, ingest.proto and the use cases.

Start: gateway_service.py
"""
