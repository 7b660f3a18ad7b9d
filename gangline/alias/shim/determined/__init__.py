"""What a process finds as `determined` when a rank or gangline.launch started it: only the way to the right one.

This folder is on such a process's PYTHONPATH, which comes before installed packages; so it steps aside at once, for an
installed Determined or for Gangline's proxy.
"""

from gangline.alias.finder import take_place

take_place()
