"""The settings of a service: its file, its command line, and the one line that says what is wrong with them.

Start: settings.py
"""
