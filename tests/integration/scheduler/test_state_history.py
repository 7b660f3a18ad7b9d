"""The history that fault tests check: each of its revisions has the records that etcd lists at that revision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc

from gangline.domain.experiment import Trial
from gangline.domain.resource import ServiceInstance
from gangline.protocol.wire import decode, encode
from services.common import keys
from services.common.etcd.stub import Operation, messages, methods_of
from tests.support.etcd import EtcdServer
from tests.support.state_history import StateHistory


def _trial(number: int, restarts: int = 0) -> tuple[str, bytes]:
    trial = Trial(id=f"1.{number}", experiment_id=1, number=number, restarts=restarts)
    return keys.trial(trial.id), encode(trial)


def _commit(methods: Mapping[Operation, Any], puts: list[tuple[str, bytes]], deletions: tuple[str, ...] = ()) -> None:
    operations = [
        messages.RequestOp(request_put=messages.PutRequest(key=key.encode(), value=value)) for key, value in puts
    ] + [messages.RequestOp(request_delete_range=messages.DeleteRangeRequest(key=key.encode())) for key in deletions]
    methods[Operation.TXN](messages.TxnRequest(success=operations), timeout=10)


def test_every_revision_is_as_etcd_lists_it(etcd_server: EtcdServer, etcd_settings: object) -> None:
    leaders = [ServiceInstance(id=name, kind="scheduler", grpc_address="a:1") for name in ("first", "second")]
    with grpc.insecure_channel(etcd_server.address) as channel:
        methods = methods_of(channel)
        _commit(methods, [_trial(1), _trial(2)])
        with StateHistory(etcd_server.address) as history:
            _commit(methods, [(keys.LEADER, encode(leaders[0]))])
            _commit(methods, [_trial(1, restarts=1), _trial(3)])
            _commit(methods, [_trial(1)], deletions=(_trial(2)[0], keys.LEADER))
            _commit(methods, [("/another", b"program")])
            _commit(methods, [_trial(2, restarts=5), (keys.LEADER, encode(leaders[1]))])
            _commit(methods, [("/another", b"again")])
            revisions = list(history.revisions())
            assert sorted(history.newest(Trial), key=lambda trial: trial.id) == sorted(
                revisions[-1].all_of(Trial), key=lambda trial: trial.id
            )
        assert [revision.number for revision in revisions] == list(range(history.first, history.first + 7))
        for revision in revisions:
            query = messages.RangeRequest(key=b"/gangline/", range_end=b"/gangline0", revision=revision.number)
            listed = {item.key.decode(): item.value for item in methods[Operation.RANGE](query, timeout=10).kvs}
            leader = listed.pop(keys.LEADER, None)
            assert revision.leader == (leader and decode(ServiceInstance, leader))
            assert {keys.trial(trial.id): encode(trial) for trial in revision.all_of(Trial)} == listed
        _commit(methods, [], deletions=("/another",))
    assert [len(revision.records) for revision in revisions] == [2, 2, 3, 2, 2, 3, 3]
