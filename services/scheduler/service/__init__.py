"""The scheduler's gRPC services: one module for each service of the protos. They map messages; they decide nothing.

Start: scheduler_service.py
"""
