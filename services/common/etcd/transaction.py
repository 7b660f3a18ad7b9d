"""Maps our transactions to etcd's and back, and settles whether one whose answer was lost has been applied.

Owns the limits: at most 128 operations and guards each, no key twice, 512 KB a request. It sends nothing and keeps no
state; `client.py` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from services.common.etcd.record import Committed, Delete, Guard, KeyValue, Put
from services.common.etcd.stub import messages

# etcd's default for --max-txn-ops.
MAX_OPERATIONS = 128
# Below etcd's default limit of 1.5 MiB for a request.
MAX_BYTES = 512_000


def transaction_request(operations: Sequence[Put | Delete], guards: Sequence[Guard]) -> Any:
    """Builds etcd's request. When a guard does not hold, etcd answers with the guards' keys instead."""
    check_limits(operations, guards)
    return messages.TxnRequest(
        compare=[compare for guard in guards for compare in _compares(guard)],
        success=[_operation(operation) for operation in operations],
        failure=[_get(key) for key in dict.fromkeys(guard.key for guard in guards)],
    )


def transaction_answer(answer: Any) -> Committed:
    current = () if answer.succeeded else tuple(key_value(item) for item in _found(answer))
    return Committed(answer.succeeded, answer.header.revision, current)


def evidence_request(operations: Sequence[Put | Delete]) -> Any:
    """Builds a request that reads every key that these operations touch, at one revision."""
    return messages.TxnRequest(success=[_get(operation.key) for operation in operations])


def applied_revision(operations: Sequence[Put | Delete], answer: Any) -> int | None:
    """Returns the revision at which these operations were applied; None when the store does not show it.

    It shows it when every put value is there, written by one and the same revision, and every deleted key is gone.
    Values that carry an id of their own make that certain; equal values of another writer mean the same state anyhow.
    """
    by_key = {item.key.decode(): item for item in _found(answer)}
    puts = [operation for operation in operations if isinstance(operation, Put)]
    if any(operation.key in by_key for operation in operations if isinstance(operation, Delete)):
        return None
    if any(put.key not in by_key or not _is_ours(put, by_key[put.key]) for put in puts):
        return None
    revisions = {int(by_key[put.key].mod_revision) for put in puts} or {int(answer.header.revision)}
    return revisions.pop() if len(revisions) == 1 else None


def check_limits(operations: Sequence[Put | Delete], guards: Sequence[Guard]) -> None:
    assert operations, "a transaction needs at least one operation"
    num_compares = sum(1 if guard.mod_revision is None else 2 for guard in guards)
    for name, count in (("operations", len(operations)), ("comparisons", num_compares)):
        assert count <= MAX_OPERATIONS, f"{count} {name} in one transaction; etcd allows {MAX_OPERATIONS}"
    keys = [operation.key for operation in operations]
    twice = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
    assert not twice, f"one transaction names {len(twice)} keys twice: {', '.join(twice[:3])}"
    size = num_bytes_of(operations)
    assert size <= MAX_BYTES, f"a transaction of {size} bytes; at most {MAX_BYTES} go into etcd, the rest into storage"


def num_bytes_of(operations: Iterable[Put | Delete]) -> int:
    """Returns the size of keys and values."""
    return sum(len(operation.key) + len(getattr(operation, "value", b"")) for operation in operations)


def key_value(item: Any) -> KeyValue:
    return KeyValue(item.key.decode(), item.value, item.create_revision, item.mod_revision)


def prefix_end(prefix: str) -> bytes:
    """Returns the first key after all that begin with this prefix."""
    stem = prefix.encode().rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"


def _is_ours(put: Put, item: Any) -> bool:
    return bool(item.value == put.value and item.lease == put.lease)


def _found(answer: Any) -> Iterable[Any]:
    return (item for response in answer.responses for item in response.response_range.kvs)


def _compares(guard: Guard) -> Iterable[Any]:
    compare = messages.Compare
    yield compare(
        key=guard.key.encode(),
        target=compare.CREATE,
        result=compare.EQUAL,
        create_revision=guard.create_revision,
    )
    if guard.mod_revision is not None:
        yield compare(key=guard.key.encode(), target=compare.MOD, result=compare.EQUAL, mod_revision=guard.mod_revision)


def _operation(operation: Put | Delete) -> Any:
    key = operation.key.encode()
    if isinstance(operation, Delete):
        return messages.RequestOp(request_delete_range=messages.DeleteRangeRequest(key=key))
    return messages.RequestOp(request_put=messages.PutRequest(key=key, value=operation.value, lease=operation.lease))


def _get(key: str) -> Any:
    return messages.RequestOp(request_range=messages.RangeRequest(key=key.encode()))
