"""What browsers need beside the API: the page's files, the cookie of a session, and headers.

Start: cookie_rule.py
"""
