"""Several ranks as threads of one process, for what ranks do together without training."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]  # public, but not in __all__

from gangline.core import DistributedContext
from gangline.core.transport import StoreTransport

T = TypeVar("T")
_SECONDS = 20.0


def in_ranks(size: int, work: Callable[[DistributedContext], T], local_size: int | None = None) -> list[T]:
    """Calls work on every rank at the same time; its results by rank. local_size: ranks of a machine, all by default.

    An exception of any rank is raised here.
    """
    store = HashStore()
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(work, _context(store, rank, size, local_size or size)) for rank in range(size)]
        return [future.result(_SECONDS) for future in futures]


def _context(store: HashStore, rank: int, size: int, local_size: int) -> DistributedContext:
    cross_rank, local_rank = divmod(rank, local_size)
    return DistributedContext(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        cross_rank=cross_rank,
        cross_size=-(-size // local_size),
        transport=StoreTransport(PrefixStore("world", store), rank, size, _SECONDS),
        make_local_transport=lambda: StoreTransport(
            PrefixStore(f"local/{cross_rank}", store), local_rank, local_size, _SECONDS
        ),
    )
