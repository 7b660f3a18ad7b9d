"""Stands in an attribute of a unit for a value that another stage has computed and kept there, as a loss of its own.

Any use is an error that names the value. So a loss in train_batch does not add what the attribute had before.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch.utils._pytree import tree_leaves

from gangline.errors import invalid


class Lost:
    """name: of the attribute. path: of the unit. part: name of the part that has the value."""

    def __init__(self, name: str, path: str, part: str) -> None:
        self._text = (
            f"pipeline: {name} was used on a stage that does not have it, because {part} computes it; let {path} "
            "return it beside its output, add such values up in the model's forward and let the model return the sum, "
            "or use ddp"
        )

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise invalid("parallelism.model", self._text)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls))._refuse()

    def __getattr__(self, name: str) -> Any:
        # Python itself asks for names such as __deepcopy__.
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


_OPERATIONS = (
    "abs add bool call contains float format ge getitem gt int iter le len lt matmul mod mul neg pow radd rmatmul rmul "
    "rpow rsub rtruediv sub truediv"
)
for _name in _OPERATIONS.split(" "):
    setattr(Lost, f"__{_name}__", Lost._refuse)
