"""The `determined` that a process finds when a rank or gangline.launch started it. It only imports the right one.

This folder is on such a process's PYTHONPATH, which comes before installed packages. So it steps aside at once, for an
installed Determined or for Gangline's proxy.
"""

from gangline.alias.finder import take_place

take_place()
