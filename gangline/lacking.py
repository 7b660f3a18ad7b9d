"""PURE: names of Determined that Gangline does not have, and the error that reports them.

Owns the sentence, and the mixin for classes that users know from Determined. gangline.alias uses it for whole modules.
"""

from __future__ import annotations

from typing import ClassVar, NoReturn

PAGE = "docs/from-determined.md"


class NotInGangline(AttributeError):
    """An attribute of Determined that has no counterpart in Gangline. hasattr() treats it as missing."""


# The ways out of names that have one which fits into the sentence.
_INSTEAD = {
    "determined.keras": "Gangline trains with PyTorch alone; a loop of your own can use gangline.core on one slot",
    "determined.pytorch.deepspeed": "`parallelism: zero2` or `zero3` divide a PyTorchTrial's state over the slots",
    "determined.pytorch.lightning": "use lightning.Trainer with gangline.lightning.GanglineCallback",
    "determined.horovod": "ranks exchange gradients over torch.distributed; parallelism: ddp is the default",
}


def explain(name: str) -> str:
    instead = _INSTEAD.get(name)
    if instead is not None:
        return f"{name} is not part of Gangline; {instead}; {PAGE} has more"
    return f"{name} is not part of Gangline; {PAGE} says what is, and what to use instead"


class _LackingClass(type):
    """Answers look-ups on the class itself, such as a method that makes an instance."""

    lacks: tuple[str, ...]

    def __getattr__(cls, name: str) -> NoReturn:
        """Raises the error; Python calls it only where ordinary lookup found nothing."""
        if name in cls.lacks:
            raise NotInGangline(explain(f"{cls.__name__}.{name}"))
        raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")


class Lacking(metaclass=_LackingClass):
    """Gives a class and its instances a better answer than "has no attribute" for the names in `lacks`."""

    lacks: ClassVar[tuple[str, ...]] = ()

    def __getattr__(self, name: str) -> NoReturn:
        """Raises the error; Python calls it only where ordinary lookup found nothing."""
        class_name = type(self).__name__
        if name in type(self).lacks:
            raise NotInGangline(explain(f"{class_name}.{name}"))
        raise AttributeError(f"{class_name!r} object has no attribute {name!r}")
