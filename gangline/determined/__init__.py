"""Parts of Determined's surface that are more than other names for Gangline's own.

Programs find them as `determined`, through gangline.alias, which lists them. No other module imports them.

Start: root.py
"""
