"""`python -m gangline.rank`: a rank in a Python of its own, where a fork of a warm process would have other packages.

Started by the nursery, in the folder in which the user's code runs.
"""

from __future__ import annotations

import faulthandler

from gangline.cluster_info import get_cluster_info
from gangline.launch import child


def main() -> None:
    child.prepare_output()
    faulthandler.enable()
    cluster = get_cluster_info()
    if cluster is not None:
        child.set_name(f"gangline-rank{cluster.rank}")
        child.put_code_first(cluster.code_directory)
    child.leave_like_a_program(child.call("gangline.rank.entrypoint:run"))


if __name__ == "__main__":
    main()
