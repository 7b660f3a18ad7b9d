"""Every served call is in one of the tables of the audit log, and every change to the leader has a description."""

from __future__ import annotations

import pytest

from gangline.v1 import gateway_pb2, ingest_pb2, scheduler_pb2
from services.gateway.app import build_routes
from services.gateway.audit import action as actions
from services.gateway.audit.change import DESCRIBED, UNDESCRIBED
from services.gateway.determined.determined_app import list_calls

READS = frozenset({"GET", "HEAD"})


def test_every_method_is_recorded_reads_or_has_a_reason() -> None:
    methods = {method.name for method in gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].methods}
    assert methods == actions.RECORDED_CALLS.keys() | actions.READING_CALLS
    assert not actions.RECORDED_CALLS.keys() & actions.READING_CALLS
    of_runners = {
        f"IngestService/{each.name}" for each in ingest_pb2.DESCRIPTOR.services_by_name["IngestService"].methods
    }
    assert of_runners == set(actions.UNRECORDED_CALLS)


def test_a_method_with_a_request_id_is_recorded() -> None:
    # Reading one experiment back by the id of the request that made it changes nothing.
    reading = {"ListExperiments"}
    for method in gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].methods:
        if "request_id" in method.input_type.fields_by_name and method.name not in reading:
            assert method.name in actions.RECORDED_CALLS, method.name


def test_every_changing_route_is_recorded_or_has_a_reason() -> None:
    served = {
        (method, route.path.removeprefix("/api/v1"))  # type: ignore[attr-defined]  # all are APIRoutes
        for route in build_routes()
        for method in route.methods  # type: ignore[attr-defined]
        if method not in READS
    }
    assert served == actions.RECORDED_ROUTES.keys() | actions.UNRECORDED_ROUTES.keys()


def test_every_changing_call_of_determined_is_recorded_or_has_a_reason() -> None:
    served = {(method, path) for method, path in list_calls() if method not in READS}
    assert served == actions.RECORDED_OF_DETERMINED.keys() | actions.UNRECORDED_OF_DETERMINED.keys()


def test_every_change_of_a_user_is_described() -> None:
    """The leader's requests that make a user's change are those that name the user."""
    served = {
        method.input_type.name
        for method in scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"].methods
        if {"user", "request_id"} <= set(method.input_type.fields_by_name)
        # Calls of earlier gateways, which this one does not make.
        and not method.GetOptions().deprecated
    }
    assert served | {"SubmitExperimentRequest"} == DESCRIBED.keys() | UNDESCRIBED.keys()


@pytest.mark.parametrize(
    "table", [actions.RECORDED_CALLS, actions.RECORDED_ROUTES, actions.RECORDED_OF_DETERMINED], ids=("rpc", "http", "d")
)
def test_a_name_has_a_kind_and_a_verb(table: dict[object, str]) -> None:
    assert all(len(name.split(".")) == 2 and name.islower() for name in table.values())


def test_a_route_and_its_twin_of_determined_have_one_name() -> None:
    """Where both APIs have the same path, with other names of its parameters."""
    ours = {(method, _shape(f"/api/v1{path}")): name for (method, path), name in actions.RECORDED_ROUTES.items()}
    for (method, path), name in actions.RECORDED_OF_DETERMINED.items():
        assert ours.get((method, _shape(path)), name) == name, path


def _shape(path: str) -> str:
    return "/".join("{}" if part.startswith("{") else part for part in path.split("/"))
