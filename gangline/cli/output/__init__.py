"""The CLI's output: the terminal, tables and JSON, the live view, and the texts about experiments and jobs.

Start: terminal.py
"""
