"""The library that users import: errors, and small modules that every other part imports. Importing it loads neither
torch nor grpc; the SDK is loaded with its first use. `gangline/transformers.py` and `gangline/lightning.py` connect
other trainers with the Core API, and no module imports them.

The types of all names are in __init__.pyi: an import of the SDK here would be a circle, because the SDK needs this
package.

Start: errors.py
"""

from importlib import import_module
from typing import Any

from gangline.cluster_info import ClusterInfo, get_cluster_info
from gangline.errors import GanglineError, InvalidHP

__version__ = "0.1.0"

# Names that are not imported above are those of the SDK.
__all__ = [
    "AsyncClient",
    "Checkpoint",
    "Client",
    "ClusterInfo",
    "Experiment",
    "GanglineError",
    "InvalidHP",
    "Trial",
    "__version__",
    "get_cluster_info",
]


def __getattr__(name: str) -> Any:
    """Loads the SDK, and grpc with it."""
    if name in __all__:
        # A name and no import statement: the layers may see no way from every module to grpc.
        return getattr(import_module("gangline.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
