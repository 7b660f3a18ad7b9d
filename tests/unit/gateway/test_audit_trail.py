"""How many records the calls of one caller leave, and what stands for those that are left out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace

import pytest
from starlette.exceptions import HTTPException

from gangline.domain.audit import AuditRecord
from gangline.errors import Effect, ErrorKind, GanglineError, not_found, unavailable
from gangline.v1 import scheduler_pb2
from services.common.server import Principal
from services.gateway.audit.attempt import Attempt, Changing
from services.gateway.audit.refusal_limit import OF_ACTORS, OF_ADDRESSES
from services.gateway.audit.trail import AuditTrail
from tests.support.stand_in_mirror import StandInMirror

ANN, EVE, RUNNER = Principal("user", "ann"), Principal("user", "eve"), Principal("allocation", "1.1.1")
ANYBODY = Principal("anonymous", "")
UNKNOWN = not_found("checkpoint.not_found", "there is no such checkpoint")


class Log:
    """A trail whose records are kept, and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[AuditRecord] = []
        self.mirror = StandInMirror()
        self.trail = AuditTrail(self.mirror, self.records.append)
        self.now = 100.0
        clock = SimpleNamespace(monotonic=lambda: self.now, time=time.time)
        monkeypatch.setattr("services.gateway.audit.trail.time", clock)

    def attempt(self, principal: Principal = ANN, action: str = "checkpoint.delete") -> Attempt:
        return self.trail.attempt("http", action, principal, None, "10.0.0.1")

    def fail(self, error: Exception, principal: Principal = ANN) -> None:
        self.attempt(principal).__enter__().__exit__(type(error), error, None)

    def delete(self, ids: Sequence[str], error: Exception | None = None) -> None:
        """Has the leader delete these checkpoints, or fail to."""
        request = scheduler_pb2.SchedulerServiceDeleteCheckpointsRequest(checkpoint_ids=ids, request_id="r")
        with suppress(GanglineError), self.attempt(), Changing(self.mirror, request):
            if error is not None:
                raise error


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


IDS = [f"c{number}" for number in range(50)]


def test_a_refused_change_of_many_leaves_one_record_that_names_them(log: Log) -> None:
    log.delete(IDS * 3, UNKNOWN)
    (record,) = log.records
    assert (record.object_id, record.outcome) == ("c0", "checkpoint.not_found")
    assert record.changes == {"num_objects": {"new": 50}, "objects": {"new": [*IDS[:20], "... 30 more"]}}


def test_a_refused_change_of_one_names_it_alone(log: Log) -> None:
    log.delete(["c0", "c0"], UNKNOWN)
    assert [(each.object_id, each.changes) for each in log.records] == [("c0", {})]


@pytest.mark.parametrize("error", [None, unavailable("rpc.unreachable", "the leader does not answer")])
def test_a_change_that_may_have_been_made_leaves_one_for_each_object_once(log: Log, error: Exception | None) -> None:
    log.delete(IDS * 3, error)
    assert [each.object_id for each in log.records] == IDS


@pytest.mark.parametrize("principal", [ANN, RUNNER])
@pytest.mark.parametrize(
    "error",
    [
        UNKNOWN,
        GanglineError("auth.no_role", "no", ErrorKind.FORBIDDEN),
        GanglineError("checkpoint.registered", "no", ErrorKind.CONFLICT),
        HTTPException(400, "no JSON"),
    ],
)
def test_refusals_of_a_known_caller_are_bounded_and_their_number_is_named(
    log: Log, principal: Principal, error: Exception
) -> None:
    for _ in range(OF_ACTORS.of_one + 100):
        log.fail(error, principal)
    assert len(log.records) == OF_ACTORS.of_one
    # Other callers have their own budgets.
    log.fail(error, EVE)
    log.now += OF_ACTORS.seconds_of_one
    for _ in range(2):
        log.fail(error, principal)
    assert [(each.actor, each.changes) for each in log.records[OF_ACTORS.of_one :]] == [
        ("eve", {}),
        (principal.name, {"attempts_left_out": {"new": 100}}),
    ]


def test_one_call_that_is_refused_for_each_of_its_objects_is_bounded(log: Log) -> None:
    with log.attempt(action="experiment.update") as attempt:
        for number in range(500):
            attempt.refuse("experiment.kill", "experiment", str(number), not_found("experiment.not_found", "unknown"))
    assert len(log.records) == OF_ACTORS.of_one


def test_forbidden_reads_are_bounded(log: Log) -> None:
    error = GanglineError("auth.not_admin", "no", ErrorKind.FORBIDDEN)
    for _ in range(OF_ACTORS.of_one + 1):
        log.trail.note_forbidden(error, surface="grpc", call="ListAudit", principal=ANN, token=None, address="10.0.0.1")
    assert len(log.records) == OF_ACTORS.of_one


def test_changes_that_were_or_may_have_been_made_are_never_left_out(log: Log) -> None:
    for _ in range(OF_ACTORS.of_one + 1):
        log.fail(UNKNOWN)
    log.records.clear()
    for _ in range(OF_ACTORS.of_one + 1):
        log.delete(["c0"])
    log.fail(GanglineError("state.unwritable", "no answer of etcd", ErrorKind.UNAVAILABLE, Effect.UNKNOWN))
    assert len(log.records) == OF_ACTORS.of_one + 2


def test_refused_logins_of_an_address_are_bounded_and_wrong_passwords_by_their_own_limit(log: Log) -> None:
    for code in ("auth.too_many_logins", "auth.wrong_password"):
        for _ in range(OF_ADDRESSES.of_one + 1):
            log.fail(GanglineError(code, "no", ErrorKind.FORBIDDEN), ANYBODY)
    outcomes = [each.outcome for each in log.records]
    assert outcomes.count("auth.too_many_logins") == OF_ADDRESSES.of_one
    assert outcomes.count("auth.wrong_password") == OF_ADDRESSES.of_one + 1
