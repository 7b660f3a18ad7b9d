"""The finder that answers for `determined`, and the modules that it makes.

A module is a proxy: it hands out what its counterpart lists in __all__, and its own submodules. For anything else it
raises an error that names the thing and the page of differences. The finder stands last on sys.meta_path, so an
installed Determined is found before it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gangline.alias.surface import PROGRAMS, ROOT, TARGET_BY_MODULE, is_ours, submodule
from gangline.lacking import NotInGangline, explain

SHIM = str(Path(__file__).parent / "shim")


def install() -> None:
    """In this process and, through PYTHONPATH, in those that it starts. May be called twice."""
    if not any(isinstance(finder, DeterminedFinder) for finder in sys.meta_path):
        sys.meta_path.append(DeterminedFinder())
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if SHIM not in entries:
        os.environ["PYTHONPATH"] = os.pathsep.join([*entries, SHIM])


def take_place() -> None:
    """Called by the shim that a child process finds on its PYTHONPATH, while it is imported as `determined`: puts an
    installed Determined in its own place, or our proxy."""
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
        # An installed Determined was found for the root, and lacks this submodule: that is its own affair.
        root = sys.modules.get(ROOT)
        if root is not None and not isinstance(root, _Proxy):
            return None
        if fullname not in TARGET_BY_MODULE:
            # Not a ModuleNotFoundError: `from determined import x` would replace that by words of its own.
            raise ImportError(explain(fullname), name=fullname)
        return ModuleSpec(fullname, _ProxyLoader(), is_package=fullname not in PROGRAMS)


class _ProxyLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Proxy(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing runs: the counterpart is imported when the first name is asked for."""

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m determined.launch.torch_distributed`."""
        spec = importlib.util.find_spec(TARGET_BY_MODULE[fullname])
        assert spec is not None
        loader: Any = spec.loader
        code: CodeType | None = loader.get_code(spec.name)
        return code


class _Proxy(ModuleType):
    """A module of Determined's name with our content."""

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
