"""gangline.pytorch.init: makes a trial's context in the cluster, under torchrun, or alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import gangline.core
from gangline.cluster_info import ClusterInfo, get_cluster_info
from gangline.core import DistributedContext
from gangline.core.beat import BUILD, GROUP, open_beat
from gangline.core.context import note_parallelism_used
from gangline.errors import GanglineError, invalid
from gangline.pytorch import group
from gangline.pytorch.data import seed
from gangline.pytorch.parallel import check_choice, choose_strategy
from gangline.pytorch.parallel.choice import names_auto
from gangline.pytorch.trial.context import PyTorchTrialContext
from gangline.pytorch.trial.setting import TrialSetting, make_setting

if TYPE_CHECKING:
    from gangline.pytorch.plan.auto import AutomaticChoice

# Lower bound of a collective's timeout on the cluster (2 h): the hang watchdog must act first (timeout_of).
_LEAST_TIMEOUT_SECONDS = 7200.0


@contextmanager
def init(
    *,
    hparams: Mapping[str, Any] | None = None,
    exp_conf: Mapping[str, Any] | None = None,
    distributed: DistributedContext | None = None,
    aggregation_frequency: int = 1,
    enable_tensorboard_logging: bool = True,
    trial_class: Callable[[Any], Any] | None = None,
) -> Iterator[PyTorchTrialContext]:
    """Yields the trial's context; all ranks use it as `with pytorch.init() as context:`.

    hparams, exp_conf: hyperparameters and configuration off the cluster. On the cluster the experiment's own take
    precedence, so that a search can vary them. distributed: for scripts that make their process group themselves; by
    default it is made here. aggregation_frequency: batches whose gradients make one optimizer step, where the
    configuration does not set it. enable_tensorboard_logging: whether reported metrics are written to TensorBoard as
    well. trial_class: the class of the trial, or a function that makes it from a context; needed for `parallelism:
    auto`, which measures the trial on the chief before the block begins.

    One process may use it several times, one block after the other: the process group stays until the process ends.
    """
    note_parallelism_used()
    cluster = get_cluster_info()
    beat = open_beat(cluster)
    beat.prepare(GROUP)
    device = group.choose_device()
    timeout = timeout_of(cluster)
    if distributed is None:
        _check_slots(cluster)
    # Checked before the ranks connect: a rank that fails at once breaks the connections that others still make.
    setting = make_setting(cluster, hparams or {}, exp_conf or {}, aggregation_frequency)
    size = distributed.size if distributed else group.num_ranks()
    check_choice(setting.parallelism, size, setting.optimizations)
    automatic = _open_automatic(trial_class, setting, device, size, distributed=distributed, cluster=cluster)
    group.open_group(device, timeout)
    beat.prepare(BUILD)
    core = gangline.core.init(distributed=distributed or _distributed())
    world = core.distributed
    choice = None
    if automatic is not None:
        choice = automatic.settle(core)
        setting = replace(setting, parallelism=automatic.section_for(choice))
    # After the choice, which has built the trial on the chief, so that the trial draws the same numbers as without it.
    seed.seed_build(setting.trial_seed)
    strategy = choose_strategy(
        setting.parallelism, world.size, device, setting.optimizations, world.cross_size, timeout=timeout
    )
    with core:
        context = PyTorchTrialContext(core, setting, strategy, device, enable_tensorboard_logging)
        context.strategy_choice = choice
        try:
            yield context
        except GanglineError as error:
            if choice is None or automatic is None or cluster is not None:
                raise
            raise automatic.with_way_out(error, choice) from error.__cause__
        finally:
            context.close_writer()


def _open_automatic(
    trial_class: Callable[[Any], Any] | None,
    setting: TrialSetting,
    device: torch.device,
    size: int,
    *,
    distributed: DistributedContext | None,
    cluster: ClusterInfo | None,
) -> AutomaticChoice | None:
    """Returns the choice that `parallelism: auto` asks for, for which the chief has measured the trial; else None."""
    if not names_auto(setting.parallelism):
        return None
    # Loaded here, because it loads parts of torch that other trials do not need.
    from gangline.pytorch.plan.auto import AutomaticChoice  # noqa: PLC0415

    rank = distributed.rank if distributed else group.own_rank()
    rounds = cluster.rounds if cluster is not None and cluster.world_size == size else 1
    return AutomaticChoice(trial_class, setting, device, slots=size, rank=rank, rounds=rounds)


def _check_slots(cluster: ClusterInfo | None) -> None:
    """Raises GanglineError `pytorch.one_process` where one process would train for several slots."""
    if cluster is not None and cluster.runs_once and cluster.world_size > group.num_ranks():
        raise invalid(
            "pytorch.one_process",
            f"the script runs once on each machine, and the trial has {cluster.world_size} slots for "
            f"{group.num_ranks()} process(es); put `python3 -m gangline.launch.torch_distributed` in front of it, "
            "which runs it in every slot",
        )


def timeout_of(cluster: ClusterInfo | None) -> timedelta | None:
    """Returns how long a collective may wait. The trial runner finds a rank that hangs and names it. The backend's own
    timeout would name a rank that waits, so it must expire later. None for torch's own, where no runner watches."""
    rule = cluster.trial.settled.hang_detection if cluster else None
    if rule is None or not rule.is_enabled:
        return None
    # One rank may be waiting for its storage.
    longest = max(rule.seconds, rule.start_seconds, rule.rest_seconds, cluster.storage_wait_seconds if cluster else 0.0)
    return timedelta(seconds=max(_LEAST_TIMEOUT_SECONDS, 2 * longest))


def _distributed() -> DistributedContext:
    return DistributedContext.from_torch_distributed() if dist.is_initialized() else DistributedContext()
