"""The HTTP surface: JSON under /api/v1, with Determined's paths where both have the call, and endpoints for
operators.

Start: ../app.py
"""
