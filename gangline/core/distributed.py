"""Holds a rank's place among the ranks of its trial, and lets ranks exchange small objects.

Owns DistributedContext. It never makes a process group for training; gangline.pytorch or the user's script makes it.
Rank, local rank and node rank mean what torch.distributed means by them.

Counts the collectives that this process has entered, from the numbers that torch's groups keep; the hang watchdog
compares the counts of all ranks.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

from gangline.cluster_info import CHIEF_PORT_KEY, get_cluster_info
from gangline.core import refusal
from gangline.core.link import connect, take_place
from gangline.core.process_group import close_group_at_exit, keep_group_at_exit
from gangline.core.transport import AloneTransport, StoreTransport, TorchTransport, Transport
from gangline.domain.beat import Collectives
from gangline.errors import invalid
from gangline.lacking import Lacking
from gangline.launch import store_host

# The port at which rank 0 listens off the cluster for a launcher of a script's own that names no other. In a trial the
# runner finds a free one.
CHIEF_PORT = 12360
# Limit for the other ranks to leave, before rank 0 ends and its store with it.
LEAVE_SECONDS = 30.0
# Least limit of an exchange.
_EXCHANGE_SECONDS = 1800.0
_WORLD = "gangline/world"
_LEAVING = "gangline/leaving"
_MACHINE = "gangline/local/{}"


class DistributedContext(Lacking):
    """The place of a rank and its exchanges with the other ranks. All ranks call every gather, allgather and broadcast
    in step; all ranks of a machine call the local ones. The calls take plain objects (see gangline.core.encoding) and
    refuse others with `core.cannot_travel`. Tensors arrive on the CPU.

    rank counts the ranks of the trial, local_rank those of this machine, cross_rank the machines.
    A context for more than one rank gets its transports from one of the class methods, or from chief_ip for a launcher
    of a script's own. With chief_ip, rank 0 listens at that address on port pub_port + port_offset for the others. It
    does not listen where the ranks were started with a store, as by a trial runner or torchrun. pub_port: by default
    the port that the trial runner has found; CHIEF_PORT off the cluster and with a port_offset. pull_port, force_tcp:
    accepted, no effect, because one port serves all exchanges.
    """

    lacks = ("from_horovod", "from_deepspeed")

    def __init__(
        self,
        *,
        rank: int = 0,
        size: int = 1,
        local_rank: int = 0,
        local_size: int = 1,
        cross_rank: int = 0,
        cross_size: int = 1,
        chief_ip: str | None = None,
        pub_port: int | None = None,
        pull_port: int | None = None,
        port_offset: int = 0,
        force_tcp: bool = False,
        transport: Transport | None = None,
        make_local_transport: Callable[[], Transport] | None = None,
    ) -> None:
        _check_place(rank, size, local_rank)
        self._leaves: Callable[[bool], None] | None = None
        if size > 1 and transport is None and chief_ip is not None:
            open_store = _stores_for(rank, size, chief_ip, _port_of(pub_port, port_offset))
            self._leaves = _make_leave(open_store(_LEAVING), rank, size)
            # A script need not close what it makes. After an uncaught exception the others may never leave.
            atexit.register(lambda: self.close(waits=not hasattr(sys, "last_value")))
            transport = StoreTransport(open_store(_WORLD), rank, size)
            make_local_transport = lambda: StoreTransport(  # noqa: E731  as below
                open_store(_MACHINE.format(cross_rank)), local_rank, local_size
            )
        if size > 1 and transport is None:
            raise invalid(
                "core.no_transport",
                f"a DistributedContext for {size} ranks needs a transport; make it with "
                "DistributedContext.from_torch_distributed() or from_environment(), or pass chief_ip",
            )
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.cross_rank = cross_rank
        self.cross_size = cross_size
        self._transport = transport or AloneTransport()
        self._make_local_transport = make_local_transport
        self._known_local_transport: Transport | None = None

    @classmethod
    def from_torch_distributed(cls) -> DistributedContext:
        """Makes a context over the default process group, which torch.distributed must have made already. Every rank
        calls it."""
        import torch.distributed as dist  # noqa: PLC0415  gangline.core is usable without torch

        if not dist.is_initialized():
            raise invalid(
                "core.no_process_group",
                "DistributedContext.from_torch_distributed() comes before torch.distributed.init_process_group(); "
                "call that first",
            )
        place = _place_from(os.environ, dist.get_rank(), dist.get_world_size())
        group = _cpu_group()
        first = place["rank"] - place["local_rank"]
        ranks = range(first, first + place["local_size"])
        context = cls(
            **place,
            transport=TorchTransport(group, range(place["size"])),
            make_local_transport=lambda: TorchTransport(_local_group(list(ranks)), ranks),
        )
        keep_group_at_exit()
        context._leaves = context._leave_group_at_exit
        return context

    @classmethod
    def from_environment(cls) -> DistributedContext:
        """Makes a context from RANK, WORLD_SIZE and the related variables, over the store at MASTER_ADDR and
        MASTER_PORT. Without them the context has one rank.

        It needs no process group and leaves the script free to make one. Every rank calls it. Raises GanglineError
        `core.no_context` where the script runs once on each of several machines.
        """
        _check_lone()
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        place = _place_from(os.environ, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        store = _store_of_environment(place["rank"], place["size"])
        seconds = _exchange_seconds()
        return cls(
            **place,
            transport=StoreTransport(store(_WORLD), place["rank"], place["size"], seconds),
            make_local_transport=lambda: StoreTransport(
                store(_MACHINE.format(place["cross_rank"])), place["local_rank"], place["local_size"], seconds
            ),
        )

    def close(self, *, waits: bool = True) -> None:
        """Leaves the other ranks. It may be called twice, and core.init() calls it at the end of its block. A context
        with chief_ip that nobody closes is closed at the end of the process.

        Over torch's process group, the process leaves that group at its end, because one that ends with an open group
        may abort. With chief_ip, rank 0 hosts the exchange and waits for the other ranks to leave, for at most
        LEAVE_SECONDS. waits: False after an exception, when they may never come. Other resources belong to the process
        group, or end with the process.
        """
        leaves, self._leaves = self._leaves, None
        if leaves is not None:
            leaves(waits)

    @property
    def is_chief(self) -> bool:
        """Returns whether this is rank 0."""
        return self.rank == 0

    def get_rank(self) -> int:
        return self.rank

    def get_size(self) -> int:
        return self.size

    def get_local_rank(self) -> int:
        return self.local_rank

    def get_num_agents(self) -> int:
        return self.cross_size

    def gather(self, stuff: Any) -> list[Any] | None:
        """Returns every rank's object, by rank, on the chief; None on the other ranks."""
        return self._transport.gather(stuff)

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """Gathers as `gather` does, among the ranks of this machine; its first rank gets the list."""
        return self._local_transport.gather(stuff)

    def allgather(self, stuff: Any) -> list[Any]:
        """Returns every rank's object, by rank, on all ranks."""
        return self._transport.allgather(stuff)

    def allgather_local(self, stuff: Any) -> list[Any]:
        return self._local_transport.allgather(stuff)

    def broadcast(self, stuff: Any) -> Any:
        """Returns the chief's object on all ranks. The objects of the other ranks are ignored."""
        return self._transport.broadcast(stuff)

    def broadcast_local(self, stuff: Any = None) -> Any:
        """Returns the object of this machine's first rank on all ranks of the machine."""
        return self._local_transport.broadcast(stuff)

    def maximum(self, numbers: Sequence[int]) -> list[int]:
        """Returns the largest of all ranks' numbers, position by position. It is cheap enough for a training loop."""
        return self._transport.maximum(numbers)

    def maximum_later(self, numbers: Sequence[int]) -> Callable[[], list[int]]:
        """Starts `maximum` without waiting for the other ranks. Returns a function that waits and gives the result. All
        ranks call that function too, once and in step."""
        return self._transport.maximum_later(numbers)

    def total_later(self, numbers: Sequence[float]) -> Callable[[], list[float]]:
        """Starts the sum of all ranks' numbers, position by position, as maximum_later does."""
        return self._transport.total_later(numbers)

    def _leave_group_at_exit(self, is_well: bool) -> None:
        def release() -> None:
            self._transport = AloneTransport()
            self._known_local_transport = None

        # Not after an exception: peers would fail too, and their errors might be reported first.
        if is_well:
            close_group_at_exit(release)

    @property
    def _local_transport(self) -> Transport:
        if self.local_size == self.size:
            return self._transport
        if self._known_local_transport is None:
            make = self._make_local_transport
            self._known_local_transport = make() if make and self.local_size > 1 else AloneTransport()
        return self._known_local_transport


def _check_place(rank: int, size: int, local_rank: int) -> None:
    """Raises where two workers would act as one rank, because they would save and report over each other. Takes the
    place where the script starts its workers itself."""
    cluster = get_cluster_info()
    if cluster is None or size == 1:
        return
    if cluster.runs_once:
        if rank == 0 and cluster.node_rank > 0:
            _refuse(
                "core.rank",
                f"DistributedContext(rank=0) is made on {cluster.agent_id}, machine {cluster.node_rank} of "
                f"{cluster.num_nodes}, each of which runs the script: there would be a rank 0 on each; number the "
                f"workers over all machines, with torchrun by {_TORCHRUN}",
            )
        take_place(rank, local_rank)
    elif size == cluster.world_size and rank != cluster.rank:
        _refuse(
            "core.rank",
            f"DistributedContext(rank={rank}) is made in the slot of rank {cluster.rank}: the experiment's launcher "
            "has started a rank in each slot already; start no workers, or take the launcher out of the entrypoint",
        )


_TORCHRUN = "--nnodes=$NNODES --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT"


def _check_lone() -> None:
    """Raises where a process would take itself for the only one although the other machines run the script too."""
    cluster = get_cluster_info()
    if cluster is None or not cluster.runs_once or cluster.num_nodes == 1 or "RANK" in os.environ:
        return
    _refuse(
        "core.no_context",
        f"the script runs once on each of {cluster.num_nodes} machines, and core.init() does not know which of its "
        "processes is rank 0; pass distributed=, or put `python3 -m gangline.launch.torch_distributed` in front of the "
        "script",
    )


def _refuse(code: str, text: str) -> NoReturn:
    # This code may run in a worker before core.init has installed the hook that reports refusals.
    refusal.install(connect())
    raise invalid(code, text)


def _place_from(environment: Mapping[str, str], rank: int, size: int) -> dict[str, Any]:
    """Reads the place of a rank. torchrun and the trial runner set all of these variables; a bare env:// start sets
    only RANK and WORLD_SIZE. In a script that runs once on each machine the slots of the machine are known then."""
    own_size = min(size, int(environment.get("NPROC_PER_NODE", size)))
    local_size = int(environment.get("LOCAL_WORLD_SIZE", own_size))
    local_rank = int(environment.get("LOCAL_RANK", rank % local_size))
    return {
        "rank": rank,
        "size": size,
        "local_rank": local_rank,
        "local_size": local_size,
        "cross_rank": int(environment.get("GROUP_RANK", rank // local_size)),
        "cross_size": int(environment.get("GROUP_WORLD_SIZE", -(-size // local_size))),
    }


def _stores_for(rank: int, size: int, address: str, port: int) -> Callable[[str], Any]:
    """Opens the stores for a launcher of a script's own. It uses the store with which these ranks were started, else
    one that rank 0 hosts."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415  not in __all__

    own = {"RANK": str(rank), "WORLD_SIZE": str(size), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    if own.items() <= os.environ.items():
        return _store_of_environment(rank, size)
    try:
        store = store_host.open_store(address, port) if rank == 0 else TCPStore(address, port, wait_for_workers=False)
    except OSError as error:
        raise invalid(
            "core.chief_address",
            f"rank 0 cannot listen at chief_ip {address} port {port}: {error.strerror}; give an address of the host of "
            "rank 0 and a free pub_port",
        ) from error
    return lambda name: PrefixStore(name, store)


def _port_of(port: int | None, offset: int) -> int:
    if port is None and not offset and CHIEF_PORT_KEY in os.environ:
        return int(os.environ[CHIEF_PORT_KEY])
    return (CHIEF_PORT if port is None else port) + offset


def _make_leave(store: Any, rank: int, size: int) -> Callable[[bool], None]:
    """Returns the end of a rank's exchange: rank 0 waits for all others, if it shall."""

    def leave(waits: bool) -> None:
        # It fails where the process that hosts the store has ended, or where a rank never leaves.
        with suppress(RuntimeError):
            if store.add("left", 1) == size:
                store.set("all", "left")
            elif rank == 0 and waits:
                store.wait(["all"], timedelta(seconds=LEAVE_SECONDS))

    return leave


def _cpu_group() -> Any:
    import torch.distributed as dist  # noqa: PLC0415  gangline.core is usable without torch

    # Objects travel as CPU tensors, which nccl does not carry.
    carries_cpu_tensors = "gloo" in str(dist.get_backend_config())
    return dist.group.WORLD if carries_cpu_tensors else dist.new_group(backend="gloo")


def _local_group(ranks: list[int]) -> Any:
    import torch.distributed as dist  # noqa: PLC0415  gangline.core is usable without torch

    # Only the ranks of this machine call this, so the new group must not wait for all ranks.
    return dist.new_group(ranks, backend="gloo", use_local_synchronization=True)


def _exchange_seconds() -> float:
    """Returns how long a rank waits for the others. One of them may be waiting for its storage."""
    cluster = get_cluster_info()
    return max(_EXCHANGE_SECONDS, 2 * cluster.storage_wait_seconds if cluster else 0.0)


def _store_of_environment(rank: int, size: int) -> Callable[[str], Any]:
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # noqa: PLC0415  public, but not in __all__
    from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415  gangline.core is usable without torch

    # torchrun keeps its store over restarts. The count keeps ranks from reading keys of an earlier attempt.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")

    def open_part(name: str) -> Any:
        store, _, _ = next(rendezvous("env://", rank, size))
        return PrefixStore(f"{name}/{attempt}", store)

    return open_part


# Prefix of the description of a process group that serves a background thread.
BACKGROUND_GROUP = "gangline:background"


def count_collectives() -> Collectives:
    """Returns the counts over the groups that exist now; all zero where no process group is open."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        groups = list(module._world.pg_map) if module is not None else []
    except (AttributeError, RuntimeError):
        # Another thread makes or leaves a group at this moment, or this version of torch keeps its groups elsewhere.
        return Collectives()
    world = others = background = 0
    for group in groups:
        number = _number_of(group)
        if group is module.GroupMember.WORLD:
            world = number
        elif getattr(group, "group_desc", "").startswith(BACKGROUND_GROUP):
            background += number
        else:
            others += number
    return Collectives(world, others, background)


def _number_of(group: Any) -> int:
    """Sums the sequence numbers over all backends of the group, because one may carry tensors of CPUs and another those
    of GPUs."""
    try:
        backends = {id(backend): backend for backend in map(group._get_backend, group._device_types)}
        return sum(int(backend._get_sequence_number_for_group()) for backend in backends.values())
    except (AttributeError, RuntimeError):
        return 0
