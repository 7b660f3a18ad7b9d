"""`python private_environment.py FOLDER`: a virtual environment above the one of this interpreter.

Packages that are installed into it hide those of the lower environment and change nothing there. pip sees the lower
packages as installed. Standard library only, because any interpreter may run this file. Started by the trial runner.
"""

from __future__ import annotations

import site
import sys
import venv
from pathlib import Path

# The file that adds the lower environment. site-packages has nothing else before the first installation.
LOWER = "lower_environment.pth"
# The lower environment's pip, run by the interpreter of the new one.
_PIP = '#!/bin/sh\nexec "$(dirname "$0")/python3" -m pip "$@"\n'


def site_packages(folder: Path) -> Path:
    """Returns the folder of the environment's packages."""
    return next(folder.glob("lib/python3*/site-packages"))


def has_packages(folder: Path) -> bool:
    """Returns whether anything was installed into the environment."""
    return any(entry.name != LOWER for entry in site_packages(folder).iterdir())


def main() -> None:
    folder = Path(sys.argv[1])
    venv.EnvBuilder(symlinks=True).create(folder)
    # addsitedir also reads the .pth files there, such as those of packages installed as editable.
    lines = [f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()]
    (site_packages(folder) / LOWER).write_text("".join(lines))
    for name in ("pip", "pip3"):
        script = folder / "bin" / name
        script.write_text(_PIP)
        script.chmod(0o755)


if __name__ == "__main__":
    main()
