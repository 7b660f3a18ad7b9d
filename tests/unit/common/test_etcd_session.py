"""A call to etcd ends when its caller is cancelled, although grpc.aio may drop the cancellation."""

from __future__ import annotations

import asyncio

from services.common.concurrency import cancel
from services.common.etcd.session import EtcdSession
from services.common.etcd.settings import EtcdSettings
from services.common.etcd.stub import Operation
from tests.support.dropping_call import DroppingCall
from tests.support.wait import within


async def test_a_call_ends_although_a_failing_try_drops_its_cancellation() -> None:
    session = EtcdSession(EtcdSettings(endpoints=("127.0.0.1:1",), deadline_seconds=600))
    dropping = DroppingCall()
    session.rotation.current.methods[Operation.TXN] = dropping
    task = asyncio.create_task(session.call(Operation.TXN, object()))
    await within(10, dropping.has_begun.wait())
    await within(10, cancel(task))
    assert task.cancelled()
    await session.rotation.close()
