"""Makes `import determined` find Gangline in a user's own environment, where Determined is not installed.

The wheel installs this file and gangline_determined.pth beside the package gangline, so every Python of the environment
imports it at its start. It therefore imports nothing by itself. Its finder is the last one, so an installed Determined
always comes first. It answers only where the extra `gangline[determined]` was installed, by the packages of that extra.
"""

import sys

# The packages of the extra, which the images of Determined had too.
_MARKS = ("requests", "ruamel.yaml")


class Finder:
    """Answers for `determined` alone. Its submodules are found by gangline.alias, which is installed then."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> "object | None":
        if fullname != "determined" or not _has_extra():
            return None
        from gangline.alias.finder import DeterminedFinder, install  # noqa: PLC0415  only when it is needed

        install()
        return DeterminedFinder().find_spec(fullname)


def _has_extra() -> bool:
    from importlib.util import find_spec  # noqa: PLC0415  only when it is needed

    try:
        return all(find_spec(name) is not None for name in _MARKS)
    except ModuleNotFoundError:  # of the package around a name
        return False


sys.meta_path.append(Finder())  # type: ignore[arg-type]  # importlib.abc would be an import at every start
