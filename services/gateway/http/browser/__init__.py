"""What browsers need beside the API: the page's files, the cookie of a session, and headers against other pages.

Start with `cookie_rule.py`, then `page_files.py`.
"""
