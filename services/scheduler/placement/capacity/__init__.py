"""PURE: which slots a request can have: free room, gangs, reservations, victims, and the ledger over all of them.

Start: ledger.py
"""
