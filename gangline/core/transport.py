"""Exchanges small Python objects among the ranks of one trial.

Owns three transports behind one interface: alone, over a torch.distributed group, and over torch's key-value store
where the script makes no process group. Training data never goes through here. All members make every call in step.
Objects travel in the format of gangline.core.encoding. Neither torch's store nor gloo authenticates its peers, so the
bytes that a rank reads may come from another process. torch's own collectives of objects would unpickle them.
Used by gangline.core.distributed; torch is imported only when a transport that needs it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from gangline.core.encoding import decode, encode


class Transport(Protocol):
    """Exchanges objects among ordered members; the first one is the source of a broadcast."""

    def allgather(self, value: Any) -> list[Any]: ...

    def broadcast(self, value: Any) -> Any: ...

    def gather(self, value: Any) -> list[Any] | None:
        """Returns every member's value at the first member, None at the others."""
        ...

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """Returns this member's value. The first member gives one value for each member, in order; the others give
        None."""
        ...

    def maximum(self, numbers: Sequence[int]) -> list[int]:
        """Returns the maximum over all members, element by element. All members give as many numbers, below 2^63."""
        ...

    def maximum_later(self, numbers: Sequence[int]) -> Callable[[], list[int]]:
        """Starts the maximum without waiting for the others. Returns a function that waits and gives the result; it is
        called once."""
        ...

    def total_later(self, numbers: Sequence[float]) -> Callable[[], list[float]]:
        """Starts the sum likewise, in double precision. The result is the same on all members."""
        ...


class AloneTransport:
    """The transport of a world of one rank."""

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any] | None:
        return [value]

    def scatter(self, values: Sequence[Any] | None) -> Any:
        assert values is not None, "the first member has the values"
        return values[0]

    def maximum(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    def maximum_later(self, numbers: Sequence[int]) -> Callable[[], list[int]]:
        return lambda: list(numbers)

    def total_later(self, numbers: Sequence[float]) -> Callable[[], list[float]]:
        return lambda: list(numbers)


class TorchTransport:
    """Exchanges over a process group that carries CPU tensors. ranks: its members' global ranks, in order."""

    def __init__(self, group: Any, ranks: Sequence[int]) -> None:
        self._group = group
        self._ranks = list(ranks)

    def allgather(self, value: Any) -> list[Any]:
        import torch.distributed as dist  # noqa: PLC0415  gangline.core is usable without torch

        payload = encode(value)
        lengths = self._lengths(len(payload))
        parts = [_empty(max(lengths)) for _ in lengths]
        dist.all_gather(parts, _padded(payload, max(lengths)), group=self._group)
        return [_read(part, length) for part, length in zip(parts, lengths, strict=True)]

    def broadcast(self, value: Any) -> Any:
        import torch.distributed as dist  # noqa: PLC0415  gangline.core is usable without torch

        payload = encode(value) if self._is_first() else b""
        # The other members pass 0, so the maximum is the first member's length.
        length = self.maximum([len(payload)])[0]
        part = _padded(payload, length)
        dist.broadcast(part, src=self._ranks[0], group=self._group)
        return value if self._is_first() else _read(part, length)

    def gather(self, value: Any) -> list[Any] | None:
        import torch.distributed as dist  # noqa: PLC0415  gangline.core is usable without torch

        payload = encode(value)
        lengths = self._lengths(len(payload))
        parts = [_empty(max(lengths)) for _ in lengths] if self._is_first() else None
        dist.gather(_padded(payload, max(lengths)), parts, dst=self._ranks[0], group=self._group)
        return [_read(part, length) for part, length in zip(parts, lengths, strict=True)] if parts else None

    def scatter(self, values: Sequence[Any] | None) -> Any:
        import torch.distributed as dist  # noqa: PLC0415  gangline.core is usable without torch

        payloads = [encode(value) for value in values or ()]
        lengths = self.maximum([len(payload) for payload in payloads] or [0] * len(self._ranks))
        part = _empty(max(lengths))
        parts = [_padded(payload, max(lengths)) for payload in payloads] or None
        dist.scatter(part, parts, src=self._ranks[0], group=self._group)
        return _read(part, lengths[dist.get_rank(self._group)])

    def _is_first(self) -> bool:
        import torch.distributed as dist  # noqa: PLC0415  gangline.core is usable without torch

        return bool(dist.get_rank(self._group) == 0)

    def _lengths(self, own: int) -> list[int]:
        """Returns the length of every member's payload."""
        import torch  # noqa: PLC0415  gangline.core is usable without torch
        import torch.distributed as dist  # noqa: PLC0415  see above

        lengths = [torch.zeros(1, dtype=torch.int64) for _ in self._ranks]
        dist.all_gather(lengths, torch.tensor([own]), group=self._group)
        return [int(length) for length in lengths]

    def maximum(self, numbers: Sequence[int]) -> list[int]:
        return self.maximum_later(numbers)()

    def maximum_later(self, numbers: Sequence[int]) -> Callable[[], list[int]]:
        import torch  # noqa: PLC0415  gangline.core is usable without torch
        import torch.distributed as dist  # noqa: PLC0415  see above

        return self._reduce_later(torch.tensor(list(numbers), dtype=torch.int64), dist.ReduceOp.MAX)

    def total_later(self, numbers: Sequence[float]) -> Callable[[], list[float]]:
        import torch  # noqa: PLC0415  gangline.core is usable without torch
        import torch.distributed as dist  # noqa: PLC0415  see above

        return self._reduce_later(torch.tensor(list(numbers), dtype=torch.float64), dist.ReduceOp.SUM)

    def _reduce_later(self, tensor: Any, operation: Any) -> Callable[[], list[Any]]:
        import torch.distributed as dist  # noqa: PLC0415  gangline.core is usable without torch

        work = dist.all_reduce(tensor, op=operation, group=self._group, async_op=True)

        def finish() -> list[Any]:
            work.wait()
            return list(tensor.tolist())

        return finish


class StoreTransport:
    """Exchanges over a torch.distributed store. It needs no process group, so a script stays free to make its own.

    Every call is a round: a member writes its value under the round's number and waits for the others' values. A member
    that has seen round n complete knows that all have read round n - 1. It then removes its own value of that round.
    The first round counts how many transports these members have used before, in scripts that ran before this one. So
    values that those scripts left are not read again.
    """

    def __init__(self, store: Any, member: int, size: int, timeout_seconds: float = 1800.0) -> None:
        self._store = store
        self._member = member
        self._size = size
        self._round = self._number = 0
        store.set_timeout(timedelta(seconds=timeout_seconds))

    def allgather(self, value: Any) -> list[Any]:
        payload = encode(value)
        if not self._round:
            self._number = self._store.add(f"used/{self._member}", 1)
        self._round += 1
        self._store.set(self._key(self._round, self._member), payload)
        keys = [self._key(self._round, member) for member in range(self._size)]
        payloads = self._store.multi_get(keys)
        if self._round > 1:
            self._store.delete_key(self._key(self._round - 1, self._member))
        return [decode(payload) for payload in payloads]

    def broadcast(self, value: Any) -> Any:
        return self.allgather(value if self._member == 0 else None)[0]

    def gather(self, value: Any) -> list[Any] | None:
        gathered = self.allgather(value)
        return gathered if self._member == 0 else None

    def scatter(self, values: Sequence[Any] | None) -> Any:
        return self.broadcast(values)[self._member]

    def maximum(self, numbers: Sequence[int]) -> list[int]:
        return self.maximum_later(numbers)()

    def maximum_later(self, numbers: Sequence[int]) -> Callable[[], list[int]]:
        return self._reduce_later(numbers, max)

    def total_later(self, numbers: Sequence[float]) -> Callable[[], list[float]]:
        return self._reduce_later(numbers, sum)

    def _reduce_later(self, numbers: Sequence[Any], reduce: Callable[[Any], Any]) -> Callable[[], list[Any]]:
        # A store cannot start a round without waiting, so the round is complete before this function returns.
        reduced = [reduce(column) for column in zip(*self.allgather(list(numbers)), strict=True)]
        return lambda: reduced

    def _key(self, number: int, member: int) -> str:
        return f"{self._number}/{number}/{member}"


def _empty(num_bytes: int) -> Any:
    import torch  # noqa: PLC0415  gangline.core is usable without torch

    return torch.empty(num_bytes, dtype=torch.uint8)


def _padded(payload: bytes, num_bytes: int) -> Any:
    """Returns the payload as a tensor of num_bytes. Collectives take tensors of one size from all members."""
    import torch  # noqa: PLC0415  gangline.core is usable without torch

    return torch.frombuffer(bytearray(payload).ljust(num_bytes, b"\0"), dtype=torch.uint8)


def _read(part: Any, length: int) -> Any:
    return decode(part[:length].numpy().tobytes())
