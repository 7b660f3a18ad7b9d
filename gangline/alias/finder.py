"""The finder that answers for `determined`, and the proxy modules that it makes.

A proxy module provides the names that its counterpart lists in __all__, and its own submodules. For any other name it
raises an error that names it and the page of differences. Off the cluster the finder is the last one on sys.meta_path,
so an installed Determined is found before it; in a trial it is the first one.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gangline.alias.surface import PROGRAMS, ROOT, TARGET_BY_MODULE, is_ours, submodule
from gangline.cluster_info import get_cluster_info
from gangline.lacking import NotInGangline, explain

_log = logging.getLogger("gangline")
SHIM = str(Path(__file__).parent / "shim")


def install() -> None:
    """Installs the finder in this process and, through PYTHONPATH, in the processes that it starts. It may be called
    twice.

    In a trial it comes before an installed Determined, whose contexts would train without this cluster.
    """
    is_in_trial = get_cluster_info() is not None
    if not any(isinstance(finder, DeterminedFinder) for finder in sys.meta_path):
        if is_in_trial:
            _tell_hidden()
        sys.meta_path.insert(0 if is_in_trial else len(sys.meta_path), DeterminedFinder())
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if SHIM not in entries:
        os.environ["PYTHONPATH"] = os.pathsep.join([SHIM, *entries] if is_in_trial else [*entries, SHIM])


def _tell_hidden() -> None:
    """Tells that an installed Determined is not used, if there is one."""
    path = [entry for entry in sys.path if entry != SHIM]
    spec = PathFinder.find_spec(ROOT, path)
    if spec is not None and os.environ.get("RANK", "0") == "0":
        _log.warning("determined in %s is not used: in a trial, `import determined` gives Gangline", spec.origin)


def take_place() -> None:
    """Puts an installed Determined, or Gangline's proxy, in the place of the shim. The shim calls it while a child
    process imports it as `determined` from its PYTHONPATH."""
    # Without the shim on the path, the import below finds an installed Determined, else the proxy.
    sys.path[:] = [entry for entry in sys.path if entry != SHIM]
    importlib.invalidate_caches()
    install()
    del sys.modules[ROOT]
    importlib.import_module(ROOT)


class DeterminedFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not is_ours(fullname):
            return None
        # An installed Determined was found for the root. A submodule that it lacks is not for this finder to replace.
        root = sys.modules.get(ROOT)
        if root is not None and not isinstance(root, _Proxy):
            return None
        if fullname not in TARGET_BY_MODULE:
            # Not a ModuleNotFoundError, because `from determined import x` would replace its message with one of its
            # own.
            raise ImportError(explain(fullname), name=fullname)
        if fullname in PROGRAMS:
            # `python -m` makes the origin sys.argv[0].
            return ModuleSpec(fullname, _ProxyLoader(), origin=_target_spec(fullname).origin)
        return ModuleSpec(fullname, _ProxyLoader(), is_package=True)


def _target_spec(fullname: str) -> ModuleSpec:
    spec = importlib.util.find_spec(TARGET_BY_MODULE[fullname])
    assert spec is not None
    return spec


class _ProxyLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Proxy(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Runs nothing. The counterpart is imported when the first name is used."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Returns the counterpart's code, for `python -m determined.launch.torch_distributed`."""
        spec = _target_spec(fullname)
        loader: Any = spec.loader
        code: CodeType | None = loader.get_code(spec.name)
        return code


class _Proxy(ModuleType):
    """A module with Determined's name and Gangline's content."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return list(getattr(self._target(), "__all__", ()))
        if name.startswith("__") and name.endswith("__") and name != "__version__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        inner = submodule(self.__name__, name)
        if inner is not None:
            return importlib.import_module(inner)
        target = self._target()
        if name not in getattr(target, "__all__", (name,)) or not hasattr(target, name):
            raise NotInGangline(explain(f"{self.__name__}.{name}"))
        return getattr(target, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})

    def _target(self) -> ModuleType:
        return importlib.import_module(TARGET_BY_MODULE[self.__name__])
