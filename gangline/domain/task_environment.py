"""PURE: the variables that a trial runner gives to the programs of shells and notebooks.

gangline/launch/notebook.py and shell.py read them; services/trial_runner/rank_setup.py sets them.
"""

from __future__ import annotations

# The interpreter that has Gangline, where the environment of the task has another one.
TASK_PYTHON = "GANGLINE_TASK_PYTHON"
# The unix socket on which the program has to listen; its runner connects to it.
TASK_SOCKET = "GANGLINE_TASK_SOCKET"
# The file with the key of a shell's owner. The runner writes it before the first connection.
TASK_KEYS = "GANGLINE_TASK_KEYS"
# Seconds without use after which a notebook ends; empty for never.
TASK_IDLE_SECONDS = "GANGLINE_TASK_IDLE_SECONDS"
# The trial's id, such as "12.1", in Determined's name.
TASK_ID = "DET_TASK_ID"
