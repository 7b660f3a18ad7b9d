"""PURE: the output of a trial: the files that its processes write into the folder that $GANGLINE_OUTPUT_DIR names.

Owns the names of that folder and of its place in the storage, the limits of what is kept, and the names that a file
there may have. The trial runner starts gangline.rank.keep_output, which copies the files; gateways hand them out.
"""

from __future__ import annotations

from gangline.domain.storage.partial import PREFIX

# The variable that names the folder in every process of a trial. Processes of one machine share the folder.
OUTPUT_KEY = "GANGLINE_OUTPUT_DIR"
FOLDER_NAME = "gangline-output"
# The folder of all trials' output, below the URL of the storage.
STORAGE_FOLDER = "outputs"
# Limits for one machine of one attempt. Files beyond them stay on the agent.
MOST_FILES = 10_000
MOST_BYTES = 50 << 30
# Of the path below the folder, in UTF-8. Object stores take 1024 for the whole key.
MOST_PATH_BYTES = 900
# Linux's limit for one name is 255; the unfinished copy of a file has a longer name than the file.
_MOST_NAME_BYTES = 200


def output_path_of(trial_id: str, node_rank: int = 0) -> str:
    """Returns the folder of a trial's output below the storage's URL. node_rank: the machine of the gang. Other
    machines than the first have a folder of their own in it, because their files may have the same names."""
    path = f"{STORAGE_FOLDER}/{trial_id}"
    return f"{path}/node{node_rank}" if node_rank else path


def output_url_of(storage_url: str, trial_id: str, node_rank: int = 0) -> str:
    return f"{storage_url.rstrip('/')}/{output_path_of(trial_id, node_rank)}"


def find_bad_path(path: str) -> str:
    """Returns why a file with this path below the output folder cannot be kept, as a clause; empty if it can."""
    try:
        num_bytes = len(path.encode())
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    parts = path.split("/")
    if num_bytes > MOST_PATH_BYTES or any(len(part.encode()) > _MOST_NAME_BYTES for part in parts):
        return f"its path is too long: more than {MOST_PATH_BYTES} bytes, or more than {_MOST_NAME_BYTES} in one name"
    if any(part.startswith(PREFIX) for part in parts):
        return f"its name begins with {PREFIX}, which marks unfinished copies"
    return ""


def is_unfinished(path: str) -> bool:
    """Whether a path in the storage is the copy of a file that was not finished."""
    return path.rpartition("/")[2].startswith(PREFIX)
