"""What a caller sees of the gateway's state: each table, each use case, sentences, and the cost of hiding."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gangline.config import parse_config
from gangline.domain.access import Role, RoleAssignment, UserGroup, WorkspaceRoles
from gangline.domain.allocation import Allocation, Member, Reason, Request
from gangline.domain.experiment import Checkpoint, Experiment, Project, Template, Trial, Workspace
from gangline.domain.fusion import FusionRecord
from gangline.domain.quota import Quota, QuotaSubject, SlotUse
from gangline.domain.registry import Model, ModelVersion
from gangline.domain.resource import Agent, FailedStart, UndeliveredRecords
from gangline.domain.search import Search
from gangline.domain.state import ReasonCode, UsageGroup
from gangline.domain.usage import UsageEntry
from gangline.domain.user import User
from gangline.errors import GanglineError
from services.common import keys
from services.common.server import Principal
from services.gateway.mirror.access_table import Need, check_call
from services.gateway.mirror.caller import Caller
from services.gateway.mirror.cluster_state import RecordTable
from services.gateway.mirror.sight import SeenMirror, sight_of
from services.gateway.table.row_index import RowIndex
from services.gateway.table.table import TableName, TableQuery, Tables
from services.gateway.usecase.agent import Agents
from services.gateway.usecase.bundle import Shared, UseCases, UserCases
from services.gateway.usecase.experiment import Experiments
from services.gateway.usecase.quota import Quotas
from services.gateway.usecase.shared.view import Views
from services.gateway.usecase.usage import Usage
from tests.support.many_experiments import make_experiment, make_trial
from tests.support.stand_in_mirror import StandInMirror

SEEN, UNSEEN = 2, 3
ANN, EVE, CLUSTER = Principal("user", "ann"), Principal("user", "eve"), Principal("cluster", "cluster", is_admin=True)
VIEWER = WorkspaceRoles(SEEN, (RoleAssignment(Role.VIEWER, 5),))
# Tables that are the same for all users. All see the agents too, but not all that these tell.
OPEN_TABLES = {"users", "tokens", "groups", "roles", "instances"}


class Filled(StandInMirror):
    """Remembers the keys of its records."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str] = []

    def put(self, key: str, record: object) -> None:
        super().put(key, record)
        self.keys.append(key)


def _put_home(mirror: StandInMirror, number: int, name: str) -> None:
    """Puts one record of each kind: the workspace `number`, in which everything has this number."""
    owner = "bob"
    records: dict[str, object] = {
        keys.workspace(number): Workspace(number, name, owner=owner),
        keys.project(number): Project(number, number, name, owner=owner),
        keys.experiment(number): Experiment(number, name, owner, "{}", "", project_id=number),
        keys.trial(f"{number}.1"): Trial(f"{number}.1", number, 1),
        keys.search(number): Search(number, 1),
        keys.request(f"{number}.2"): Request(f"{number}.2", number, "default", 1, submitted_at=float(number)),
        keys.allocation(f"{number}.1.1"): Allocation(
            f"{number}.1.1", f"{number}.1", number, 1, 1, "default", (Member("a1", 0, (f"a1/{number}",)),)
        ),
        keys.checkpoint(f"c{number}"): Checkpoint(f"c{number}", f"{number}.1", number, 1, f"file:///c{number}"),
        keys.quota(f"workspace/{number}"): Quota(QuotaSubject("workspace", str(number))),
        keys.slot_use(f"workspace/{number}"): SlotUse(QuotaSubject("workspace", str(number))),
        keys.model(number): Model(number, name, owner=owner, workspace_id=number),
        keys.model_version(f"{number}.1"): ModelVersion(f"{number}.1", number, 1, f"c{number}"),
    }
    for key, record in records.items():
        mirror.put(key, record)


@pytest.fixture
def mirror() -> Filled:
    """Two workspaces. The cluster is closed, and ann views the first."""
    mirror = Filled()
    for record in (User("ann", "", id=5), User("eve", "", id=6)):
        mirror.put(keys.user(record.name), record)
    mirror.put(keys.roles(0), WorkspaceRoles(0))
    mirror.put(keys.roles(SEEN), VIEWER)
    _put_home(mirror, SEEN, "lab")
    _put_home(mirror, UNSEEN, "secret")
    mirror.put(keys.template("t"), Template("t"))
    mirror.put(keys.fusion("f"), FusionRecord("f"))
    return mirror


def _tables(state: object) -> dict[str, RecordTable[Any]]:
    return {name: table for name, table in vars(state).items() if isinstance(table, RecordTable) and name[0] != "_"}


def test_every_table_leaves_out_what_its_caller_does_not_see(mirror: Filled) -> None:
    whole = _tables(mirror.state)
    seen, nothing = (_tables(SeenMirror(mirror, principal).state) for principal in (ANN, EVE))
    assert seen.keys() == nothing.keys() == whole.keys()
    for name, table in whole.items():
        if name == "agents":
            continue
        if name in OPEN_TABLES:
            assert seen[name] is nothing[name] is table, name
            continue
        records = {key: record for key in mirror.keys if (record := table.find(key)) is not None}
        assert records, f"the test has no {name}"
        assert [*nothing[name].all()] == []
        assert len(nothing[name]) == 0
        of_lab = [record for record in records.values() if str(UNSEEN) not in repr(_identity(record))]
        assert [*seen[name].all()] == of_lab, name
        assert len(seen[name]) == len(of_lab)
        for key, record in records.items():
            assert nothing[name].find(key) is None, key
            assert (seen[name].find(key) is record) == (record in of_lab), key
    for name, group in (
        ("trials", UNSEEN),
        ("allocations", "3.1"),
        ("checkpoints", UNSEEN),
        ("model_versions", UNSEEN),
    ):
        assert [*whole[name].of(group)], name
        assert [*seen[name].of(group)] == [], name
    with pytest.raises(AssertionError):
        seen["trials"].put(keys.trial("4.1"), b"")


def _identity(record: Any) -> object:
    """Returns the values that say what a record is."""
    names = {"id", "name", "key", "trial_id", "experiment_id", "subject"} & {field.name for field in fields(record)}
    return [getattr(record, name) for name in sorted(names)]


def test_who_has_a_role_for_the_cluster_gets_the_state_itself(mirror: StandInMirror) -> None:
    assert SeenMirror(mirror, CLUSTER).state is mirror.state
    mirror.put(keys.roles(0), WorkspaceRoles(0, (RoleAssignment(Role.VIEWER, group="everyone"),)))
    assert SeenMirror(mirror, EVE).state is mirror.state


def test_roles_groups_and_moves_hold_at_once(mirror: StandInMirror) -> None:
    """A mirror that a stream keeps shows each change at the next look."""
    kept = SeenMirror(mirror, EVE)

    def sees(number: int) -> bool:
        return kept.state.experiments.find(keys.experiment(number)) is not None

    assert not sees(SEEN)
    mirror.put(keys.roles(SEEN), WorkspaceRoles(SEEN, (RoleAssignment(Role.VIEWER, group="team"),)))
    assert not sees(SEEN)
    mirror.put(keys.group("team"), UserGroup("team", (6,)))
    assert sees(SEEN)
    assert not sees(UNSEEN)
    mirror.put(keys.experiment(UNSEEN), Experiment(UNSEEN, "moved", "bob", "{}", "", project_id=SEEN))
    assert sees(UNSEEN)
    mirror.put(keys.group("team"), UserGroup("team"))
    assert not sees(SEEN)
    assert not sees(UNSEEN)


def test_roles_that_cannot_be_read_give_nothing(mirror: StandInMirror) -> None:
    """Otherwise the first assignment would hold, which gives everyone the role of an editor."""
    mirror.state.apply(keys.roles(0), b"\xff\xff")
    assert not sight_of(mirror.state, EVE).sees_all
    mirror.state.apply(keys.roles(SEEN), b"\xff\xff")
    assert sight_of(mirror.state, ANN).workspace_ids == frozenset()


def test_slots_and_sentences_name_no_unseen_work(mirror: StandInMirror) -> None:
    state = SeenMirror(mirror, ANN).state
    assert state.allocation_id_by_slot_id() == {"a1/2": "2.1.1", "a1/3": "another workspace"}
    assert state.pseudonyms == {"3.1": "0.1", "3.2": "0.2"}
    reason = Reason(
        ReasonCode.BEHIND_RESERVATION,
        "waits behind trial 3.2 and allocation 3.1.1 of experiment 3, not 2.1 of experiment 2",
        "Experiment 3 ends",
        ("3.1.1", "2.1.1", "3.2"),
        changes_json='[{"end": "3.1.1"}]',
    )
    hidden = state.hide(reason)
    assert hidden.message == "waits behind trial 0.2 and allocation 0.1.1 of experiment 0, not 2.1 of experiment 2"
    assert hidden.would_start_if == "Experiment 0 ends"
    assert hidden.blocking_ids == ("0.1.1", "2.1.1", "0.2")
    assert hidden.changes_json == '[{"end": "0.1.1"}]'
    assert mirror.state.hide(reason) == reason


def test_agents_tell_nothing_of_unseen_trials(mirror: StandInMirror) -> None:
    """Neither those that failed to start there, nor those whose records wait there, also when they are gone."""
    trial_ids = ("2.1", "3.1", "99.1")
    sick = Agent(
        "a1",
        failed_starts=tuple(FailedStart(trial_id, 1.0, f"why {trial_id}") for trial_id in trial_ids),
        undelivered=tuple(UndeliveredRecords(trial_id, f"{trial_id}.1", 10, 1.0) for trial_id in trial_ids),
        quarantine_reason="2 trials in a row could not start there (2.1, 3.1); last: why 3.1",
        quarantined_until_at=9.0,
    )
    own = Agent("a2", quarantine_reason="2 trials in a row could not start there (2.1, 2.1); last: 1.5 GiB are free")
    for agent in (sick, own, Agent("a3")):
        mirror.put(keys.agent(agent.id), agent)
    ann, eve = (Agents(Caller(principal), SeenMirror(mirror, principal), cast("Any", None)) for principal in (ANN, EVE))
    for seen in (ann.list()[0].agent, ann.view("a1").agent, ann.find_all(["a1"])[0].agent):
        assert seen == replace(
            sick,
            failed_starts=sick.failed_starts[:1],
            undelivered=sick.undelivered[:1],
            quarantine_reason="several trials in a row could not start there",
        )
    assert SeenMirror(mirror, ANN).state.agents.find(keys.agent("a1")) == ann.view("a1").agent
    assert [view.agent for view in ann.list()[1:]] == [own, Agent("a3")]
    assert not any(number in repr(eve.list()) for number in ("2.1", "3.1", "99.1", "why"))
    assert [view.agent for view in Agents(Caller(CLUSTER), SeenMirror(mirror, CLUSTER), cast("Any", None)).list()] == [
        sick, own, Agent("a3"),
    ]  # fmt: skip
    reason = Reason(ReasonCode.BEHIND_RESERVATION, f"a1 is out of use: {sick.quarantine_reason}")
    hidden = SeenMirror(mirror, ANN).state.hide(reason)
    assert hidden.message == "a1 is out of use: several trials in a row could not start there"


def test_quotas_count_what_their_reader_does_not_see(mirror: StandInMirror) -> None:
    """The own quota and those of seen workspaces are listed. What ann runs elsewhere counts for her quota too."""
    mirror.put(keys.quota("user/ann"), Quota(QuotaSubject("user", "ann"), max_slots=4))
    mirror.put(keys.quota("user/eve"), Quota(QuotaSubject("user", "eve"), max_slots=4))
    mirror.put(keys.experiment(UNSEEN), Experiment(UNSEEN, "of ann", "ann", "{}", "", project_id=UNSEEN))
    quotas = Quotas(Caller(ANN), SeenMirror(mirror, ANN), cast("Any", None))
    found = {(view.subject.kind, view.name): view.held_slots for view in quotas.list_quotas()}
    assert found == {("user", "ann"): 1, ("workspace", "lab"): 1}
    for kind, name in (("workspace", "secret"), ("user", "eve")):
        with pytest.raises(GanglineError) as caught:
            quotas.find(kind, name)
        assert caught.value.code == "quota.not_found"


@pytest.mark.parametrize(
    ("by", "seen"),
    [
        (UsageGroup.OWNER, "bob"),
        (UsageGroup.EXPERIMENT, "2"),
        (UsageGroup.WORKSPACE, "lab"),
        (UsageGroup.PROJECT, "lab/lab"),
    ],
)
async def test_usage_adds_up_what_its_reader_does_not_see(mirror: StandInMirror, by: UsageGroup, seen: str) -> None:
    class History:
        async def usage(self, since: float, until: float, by: UsageGroup, recent_since: float) -> Any:
            assert by is UsageGroup.EXPERIMENT, "owners of unseen work would be named"
            return [UsageEntry(str(number), cpu_slot_seconds=number * 100.0) for number in (SEEN, UNSEEN, 99)], []

        async def record(self) -> None: ...

    mirror.remove(keys.allocation("2.1.1"))
    mirror.remove(keys.allocation("3.1.1"))
    history = cast("Any", History())
    report = await Usage(Caller(ANN), SeenMirror(mirror, ANN), history, history).report(1.0, 0.0, by)
    assert {entry.key: entry.cpu_slot_seconds for entry in report.entries} == {
        seen: 200.0,
        "(other workspaces)": 300.0 + 9900.0,
    }


@pytest.mark.parametrize("number", [UNSEEN, 9])
async def test_events_of_an_unseen_search_are_those_of_an_unknown_one(mirror: StandInMirror, number: int) -> None:
    """A search that has ended is not looked at again, and the leader is asked for no user."""
    nothing, seen = cast("Any", None), SeenMirror(mirror, ANN)
    views = Views(seen, nothing, nothing)
    asked: list[object] = []
    leader = SimpleNamespace(call=lambda *request: asked.append(request))
    cases = Experiments(nothing, seen, cast("Any", leader), nothing, views=views, code=nothing, following=nothing)
    with pytest.raises(GanglineError) as refusal:
        await cases.search_events(number, 0, 0.0)
    assert refusal.value.code == "experiment.not_found"
    assert asked == []


def test_an_imported_checkpoint_is_seen_by_its_importer(mirror: StandInMirror) -> None:
    mirror.put(keys.checkpoint("own"), Checkpoint("own", "", 0, 1, "file:///own", owner="eve"))
    found = [{each.id for each in SeenMirror(mirror, user).state.checkpoints.all()} for user in (ANN, EVE)]
    assert found == [{"c2"}, {"own"}]
    # A version of a model that ann sees shows its checkpoint.
    mirror.put(keys.model_version("2.2"), ModelVersion("2.2", SEEN, 2, "own"))
    assert {each.id for each in SeenMirror(mirror, ANN).state.checkpoints.all()} == {"c2", "own"}


def test_every_use_case_of_a_user_has_what_the_caller_sees_in_place_of_the_whole() -> None:
    """A new use case that takes the mirror itself would show everything to all."""
    whole = StandInMirror()
    parts: dict[str, Any] = {field.name: SimpleNamespace() for field in fields(Shared)}
    parts["history"] = SimpleNamespace(reader=None, following=None, usage_recorder=None, saved_views=None, audit=None)
    views = Views(whole, cast("Any", None), cast("Any", None))
    nothing, shared = cast("Any", None), Shared(**{**parts, "mirror": whole, "views": views})
    cases = UseCases(nothing, nothing, nothing, shared).of(ANN)
    names = [name for name, member in vars(UserCases).items() if isinstance(member, property)]
    assert len(names) > 15
    with_whole = {
        name for name in names if any(value is whole or value is views for value in vars(getattr(cases, name)).values())
    }
    # The cluster's size and use is the same for all. An import looks whether its files are another user's.
    assert with_whole == {"clusters", "checkpoint_imports"}


def test_a_call_without_an_entry_is_refused_for_everyone(mirror: StandInMirror) -> None:
    for principal in (ANN, CLUSTER, Principal("user", "root", is_admin=True), Principal("allocation", "2.1.1")):
        with pytest.raises(GanglineError) as caught:
            check_call(None, principal, mirror.state)
        assert caught.value.code == "auth.no_entry"


@pytest.mark.parametrize(
    ("need", "principal", "code"),
    [
        (Need.ADMIN, CLUSTER, ""),
        (Need.EDIT, ANN, "auth.no_role"),
        (Need.EDIT_SOMEWHERE, EVE, "auth.no_role"),
        (Need.VIEW, EVE, ""),
        (Need.VIEW, Principal("allocation", "2.1.1"), "auth.forbidden"),
        (Need.OPERATE, Principal("agent", "a1"), "auth.forbidden"),
        (Need.RUNNER, Principal("agent", "a1"), ""),
    ],
)
def test_what_no_record_could_allow_is_refused_first(
    mirror: StandInMirror, need: Need, principal: Principal, code: str
) -> None:
    if not code:
        check_call(need, principal, mirror.state)
        return
    with pytest.raises(GanglineError) as caught:
        check_call(need, principal, mirror.state)
    assert caught.value.code == code


@pytest.fixture(scope="module")
def large() -> StandInMirror:
    """20,000 experiments with one trial and one checkpoint each; ann sees every second one."""
    mirror = StandInMirror()
    config = parse_config("entrypoint: a:B\nsearcher: {name: single, metric: loss, max_length: {batches: 1}}\n")
    config_json = config[0].model_dump_json()
    mirror.put(keys.user("ann"), User("ann", "", id=5))
    mirror.put(keys.roles(SEEN), VIEWER)
    for number, name in ((SEEN, "lab"), (UNSEEN, "secret")):
        mirror.put(keys.workspace(number), Workspace(number, name))
        mirror.put(keys.project(number), Project(number, number, name))
    for number in range(1, 20_001):
        experiment = make_experiment(number, config_json)
        home = SEEN if number % 2 else UNSEEN
        mirror.put(keys.experiment(number), replace(experiment, project_id=home))
        mirror.put(keys.trial(f"{number}.1"), make_trial(number))
        mirror.put(
            keys.checkpoint(f"c{number}"), Checkpoint(f"c{number}", f"{number}.1", number, 1, f"file:///c{number}")
        )
    return mirror


async def test_a_list_of_10000_costs_about_as_much_with_hiding_as_without(large: StandInMirror) -> None:
    """The one who sees half of 20,000 waits no longer than the one who sees all, apart from a factor for the checks."""
    views = Views(large, cast("Any", None), cast("Any", None))
    parts: dict[str, Any] = {field.name: SimpleNamespace() for field in fields(Shared)}
    parts["history"] = SimpleNamespace(reader=None, following=None, usage_recorder=None, saved_views=None, audit=None)
    tables = Tables(RowIndex(large), lambda: large.state.revision, lambda: 1.8e9)
    shared = Shared(**{**parts, "mirror": large, "views": views, "tables": tables})
    usecases = UseCases(cast("Any", None), cast("Any", None), cast("Any", None), shared)

    async def experiments(cases: UserCases) -> int:
        return cases.experiments.list(limit=10)[1]

    async def checkpoints(cases: UserCases) -> int:
        return len(await cases.checkpoints.list())

    async def table(cases: UserCases) -> int:
        query = TableQuery(TableName.TRIALS, sort="-hp.lr", filter=f"id != '{cases.caller.name}'")
        return len((await cases.tables.read(query, (), 0, 10)).result.ids)

    for read in (experiments, checkpoints, table):
        large.put(keys.roles(0), WorkspaceRoles(0, (RoleAssignment(Role.VIEWER, 5),)))
        await read(usecases.of(ANN))
        count, seconds_of_all = await _measure(read, usecases)
        assert count == 20_000
        large.put(keys.roles(0), WorkspaceRoles(0))
        count, seconds_of_half = await _measure(read, usecases)
        assert count == 10_000
        assert seconds_of_half <= 3 * seconds_of_all + 0.02, read.__name__


async def _measure(read: Callable[[UserCases], Awaitable[int]], usecases: UseCases) -> tuple[int, float]:
    """Returns the answer, and the least seconds of this thread of three calls."""
    count, best = 0, float("inf")
    for _ in range(3):
        began = time.thread_time()
        count = await read(usecases.of(ANN))
        best = min(best, time.thread_time() - began)
    return count, best
