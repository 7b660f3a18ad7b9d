"""TLS of the services: their files, the credentials of their servers, and how they reach one another.

Start: identity.py
"""
