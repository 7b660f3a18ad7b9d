"""Tables of experiments and trials over the mirrored state: their fields, filters, sorting and pages. It knows no
caller and reads no history.

Start: table.py
"""
