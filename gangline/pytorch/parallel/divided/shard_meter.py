"""Times fully_shard's collectives: the gathering of parameters, the reduction of gradients and the all-reduce over
copies.

Puts timers around the collectives of divided modules while a measurement runs, and removes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from gangline.pytorch.profile.collective import CollectiveTimer, watched_waits

# Attributes of torch's parameter groups that hold the collectives.
_GATHERING, _REDUCTION = "_all_gather_comm", "_reduce_scatter_comm"


class ShardMeter(CollectiveTimer):
    """Implements TrafficMeter. modules: returns all modules that fully_shard was called with, so far. has_copies:
    whether each part is on several ranks, so that gradients are reduced over them too.

    A trial's own asynchronous gathering (`unshard(async_op=True)`) counts for the duration of its call.
    """

    def __init__(self, device: torch.device, modules: Callable[[], Iterable[FSDPModule]], has_copies: bool) -> None:
        super().__init__(device)
        self._modules = modules
        self._has_copies = has_copies
        self._around = ExitStack()
        self._reduced: Any = None

    def start(self, is_in_step: Callable[[], bool]) -> None:
        super().start(is_in_step)
        for module in self._modules():
            for group in parameter_groups(module):
                self._put_around(group)
        if self._stream is not None:
            self._around.enter_context(watched_waits(self._stream, self._wait))

    def stop(self) -> None:
        self._around.close()
        super().stop()

    def _put_around(self, group: Any) -> None:
        # torch has setters for these, but no getters, and a trial may have set its own.
        self._replace(group, _GATHERING, _Timed(getattr(group, _GATHERING), self._gather))
        self._replace(group, _REDUCTION, _Timed(getattr(group, _REDUCTION), self._reduce))
        if self._has_copies:
            self._replace(group, "_all_reduce_hook", self._after_all_reduce(group._all_reduce_hook))

    def _replace(self, group: Any, name: str, value: Any) -> None:
        before = getattr(group, name)

        def put_back() -> None:
            if getattr(group, name) is value:
                setattr(group, name, before)

        setattr(group, name, value)
        self._around.callback(put_back)

    def _gather(self, collective: Callable[[], Any]) -> Any:
        return self._run(collective)[0]

    def _reduce(self, collective: Callable[[], Any]) -> Any:
        result, self._reduced = self._run(collective)
        return result

    def _run(self, collective: Callable[[], Any]) -> tuple[Any, Any]:
        """Returns the collective's result, and the mark of its end; None where it does not count."""
        if not self.is_counting:
            return collective(), None
        begin = self.mark()
        return collective(), self.add(begin)

    def _after_all_reduce(self, hook: Callable[[torch.Tensor], None] | None) -> Callable[[torch.Tensor], None]:
        """Returns a hook that counts the all-reduce over copies. torch calls it in the stream of the all-reduce, right
        after the reduce-scatter; no call encloses the all-reduce."""

        def measure(reduced: torch.Tensor) -> None:
            if self._reduced is not None and self.is_counting:
                self.add(self._reduced)
            if hook is not None:
                hook(reduced)

        return measure

    def _wait(self, wait: Callable[[], None]) -> None:
        if not self.is_counting:
            return wait()
        begin = self.mark()
        wait()
        return self.add_wait(begin)


class _Timed:
    """Replaces a collective of torch's fully_shard: an object that also allocates the collective's output."""

    def __init__(self, collective: Any, run: Callable[[Callable[[], Any]], Any]) -> None:
        self._collective = collective
        self._run = run

    def allocate(self, *arguments: Any, **options: Any) -> torch.Tensor:
        output: torch.Tensor = self._collective.allocate(*arguments, **options)
        return output

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._run(lambda: self._collective(*arguments, **options))


def parameter_groups(module: FSDPModule) -> list[Any]:
    """Returns torch's record of the parameters that are gathered together with this module."""
    state: Any = module._get_fsdp_state()
    # Older releases of torch have one group of parameters for each module.
    groups = getattr(state, "_fsdp_param_groups", None)
    return [group for group in ([state._fsdp_param_group] if groups is None else groups) if group is not None]


def can_be_measured(module: FSDPModule) -> bool:
    """Returns whether this release of torch keeps its collectives where they can be replaced."""
    names = (_GATHERING, _REDUCTION, "_all_reduce_hook")
    return all(hasattr(group, name) for group in parameter_groups(module) for name in names)
