"""`gangline up`, `down`, `login` and `status`: a cluster on this machine, the login, and the state of any cluster."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gangline.cli.account.secret import read_password, read_token
from gangline.cli.open import enter_address
from gangline.cli.output.table_layout import Column
from gangline.cli.output.terminal import mention, say, say_document, say_json, table_lines
from gangline.cli.output.text import count, format_duration
from gangline.cli.shared import Json, connect, show, warn
from gangline.errors import ErrorKind, GanglineError, conflict, invalid

if TYPE_CHECKING:
    from gangline.client import Client, ClusterView, EtcdHealth
    from gangline.local.layout import Layout
    from gangline.local.plan import UpRequest
    from gangline.local.process_table import ProcessTable
    from gangline.local.up import RunningCluster

_SERVICE_COLUMNS = (
    Column("SERVICE"),
    Column("STATE", 9),
    Column("PID", 4),
    Column("ADDRESSES", 8, least=16),
    Column("RESTARTS", 5),
)

DataDirectory = Annotated[
    Path | None, typer.Option("--data-dir", help="Where the cluster keeps its files.", file_okay=False)
]
Grace = Annotated[float, typer.Option("--grace-seconds", help="For running trials to save a checkpoint.", min=0)]


def up(
    *,
    agents: Annotated[int | None, typer.Option(help="Agents to start; default: 2, with --slots auto 1.")] = None,
    slots: Annotated[
        str | None, typer.Option(help="Artificial slots of each agent, or auto for the GPUs; default: 2.")
    ] = None,
    data_dir: DataDirectory = None,
    http_port: Annotated[int, typer.Option(help="Port of the gateway's HTTP; 0: a free one.", min=0, max=65535)] = 0,
    grpc_port: Annotated[int, typer.Option(help="Port of the gateway's gRPC; 0: a free one.", min=0, max=65535)] = 0,
    detach: Annotated[bool, typer.Option(help="Return once it is up, or stay and stop it on Ctrl-C.")] = True,
    grace_seconds: Grace = 10,
    is_json: Json = False,
) -> None:
    """Start a whole cluster on this machine: etcd, a scheduler, a gateway and agents.

    Where one runs in the data directory already, commands use it again. They find it by the login below $GANGLINE_HOME
    (default: ~/.config/gangline).
    """
    from gangline.local.interruption import Interruption  # noqa: PLC0415 - up and down only
    from gangline.local.layout import layout_of  # noqa: PLC0415
    from gangline.local.lock import is_locked  # noqa: PLC0415
    from gangline.local.plan import UpRequest, make_plan  # noqa: PLC0415
    from gangline.local.up import start_cluster, stop_local_cluster  # noqa: PLC0415

    plan, layout = make_plan(agents, slots, http_port, grpc_port), layout_of(data_dir)
    if detach and is_locked(layout.lock):
        _use(layout, UpRequest(agents, slots, http_port, grpc_port), is_json)
        return
    running = start_cluster(layout, plan, grace_seconds, mention, _connect)
    if running.replaced:
        warn(running.replaced)
    record = _running_record(running, layout)
    if detach:
        show(record, is_json, lambda: _welcome(running, layout))
        return
    with Interruption() as interruption:
        show(record, is_json, lambda: _welcome(running, layout), flush=True)
        is_interrupted = interruption.wait(running.supervisor)
    if is_interrupted:
        stop_local_cluster(layout, grace_seconds, mention)


def _connect(address: str, token: str) -> Client:
    from gangline.client import Client  # noqa: PLC0415 - loads grpc, which these steps alone need

    return Client(address, token)


def _use(layout: Layout, request: UpRequest, is_json: bool) -> None:
    """Makes commands use the cluster that runs already. Raises GanglineError `local.running` where it has another shape
    than the user asks for."""
    from gangline.local.up import use_cluster  # noqa: PLC0415 - up only

    running, plan = use_cluster(layout, _connect)
    if running.replaced:
        warn(running.replaced)
    differences = request.find_differences(plan)
    if differences:
        raise conflict(
            "local.running",
            f"the cluster in {layout.root} runs already, with {' '.join(differences)}; commands use it as it is. To "
            f"change it, type `gangline down --data-dir {layout.root}` first",
        )
    show(_running_record(running, layout), is_json, lambda: _welcome(running, layout, "runs already"))


def down(data_dir: DataDirectory = None, grace_seconds: Grace = 10, is_json: Json = False) -> None:
    """Stop the cluster of this machine and wait until nothing of it runs."""
    from gangline.local.layout import layout_of  # noqa: PLC0415 - up and down only
    from gangline.local.up import stop_local_cluster  # noqa: PLC0415

    layout = layout_of(data_dir)
    was_running = stop_local_cluster(layout, grace_seconds, mention)
    words = "stopped; its data stays in" if was_running else "nothing runs in"
    record = {"was_running": was_running, "data_directory": str(layout.root)}
    show(record, is_json, lambda: [f"{words} {layout.root}"])


def status(
    data_dir: DataDirectory = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Print what the planner looks at, as JSON for gangline simulate.")
    ] = False,
    pool: Annotated[str, typer.Option(help="With --snapshot: of this pool; default: the only one.")] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="With --snapshot: write it to this file.", dir_okay=False)
    ] = None,
    is_json: Json = False,
) -> None:
    """Show the services, the leading scheduler, agents and slots."""
    if snapshot:
        _show_snapshot(pool, output)
        return
    if pool or output is not None:
        raise invalid("status.no_snapshot", "--pool and --output go with --snapshot only")
    table, layout = _local_table(data_dir)
    cluster, exposures, problem = _cluster(None if data_dir is None else layout)
    if is_json:
        local = None if table is None else {"data_directory": str(layout.root), **_table_record(table)}
        say_json({"local": local, "cluster": cluster, "exposures": exposures, "problem": problem})
    else:
        local_lines = _local_lines(table, layout) if table else []
        cluster_lines = [*_cluster_lines(cluster), *_exposure_lines(exposures)] if cluster else []
        say([*local_lines, *([""] if local_lines and cluster_lines else []), *cluster_lines])
    if problem:
        raise GanglineError(problem["code"], problem["message"], ErrorKind.UNAVAILABLE)


def login(
    addresses: Annotated[
        str, typer.Argument(metavar="ADDRESSES", help="The gateways, as gpu1:8081,gpu2:8081; default port: 8081.")
    ],
    user: Annotated[
        str, typer.Option("--user", metavar="NAME", help="Log in with this user's password instead of a token.")
    ] = "",
    ca_file: Annotated[
        str,
        typer.Option(
            "--ca-file", metavar="FILE", help="For gateways with TLS: their authority's ca.crt, or the word system."
        ),
    ] = "",
) -> None:
    """Log in to a cluster: later commands use one of these gateways, and another one when that one is away.

    The token comes from GANGLINE_TOKEN, from a question, or from the standard input; a password from one of the last
    two. A password opens a session of 7 days. The login is stored only after a gateway has accepted it.
    """
    if ca_file and ca_file != "system":
        # Later commands run in other folders.
        ca_file = str(Path(ca_file).absolute())
    token = _open_session(addresses, user, ca_file) if user else read_token()
    with connect(address=addresses, token=token, ca_file=ca_file) as client:
        # This follows `connect`, which must run before the first import of grpc.
        from gangline.local.local_login import find_local, is_running  # noqa: PLC0415
        from gangline.login import load_login, save_login  # noqa: PLC0415

        try:
            client.get_cluster()
        except GanglineError as error:
            raise _name_token(error) from error
        now, before = find_local(client.login) or client.login, load_login()
        path, gateways = save_login(now), ", ".join(now.addresses)
    former = before.data_directory if before is not None else ""
    if former and former != now.data_directory and is_running(former):
        stop = f"gangline down --data-dir {former}"
        warn(f"commands no longer use the local cluster in {former}; stop it with: {stop}")
    if os.environ.get("GANGLINE_GATEWAY"):
        warn("GANGLINE_GATEWAY is set in this shell, and commands use it instead of the login; unset it")
    if user and os.environ.get("GANGLINE_TOKEN"):
        warn("GANGLINE_TOKEN is set in this shell, and commands use it instead of the login; unset it")
    say([f"logged in to {gateways}{f' as {user}' if user else ''}; the login is in {path}"])


def _name_token(error: GanglineError) -> GanglineError:
    """Returns the error of a login. It says where the token is from that belongs to no user."""
    if error.code != "auth.wrong_token":
        return error
    source = "correct GANGLINE_TOKEN" if os.environ.get("GANGLINE_TOKEN") else "it is from the standard input"
    return error.reworded(f"this token belongs to no user of this cluster; {source}")


def _open_session(addresses: str, user: str, ca_file: str) -> str:
    """Returns the token of a new session."""
    password = read_password(f"Password of {user}")
    # The call for a session needs no token.
    with connect(address=addresses, token="-", ca_file=ca_file) as client:  # noqa: S106 - no token
        return client.log_in(user, password).token


def _show_snapshot(pool: str, output: Path | None) -> None:
    """Prints or writes the planner's snapshot. Raises GanglineError `status.unwritable`."""
    with connect() as client:
        text = client.get_snapshot(pool).rstrip("\n") + "\n"
    if output is None:
        say_document(text)
        return
    try:
        output.write_text(text, "utf-8")
    except OSError as failure:
        raise invalid("status.unwritable", f"cannot write {output}: {failure.strerror}") from failure
    say([f"wrote {output}; look at its plan with: gangline simulate {output}"])


def _welcome(running: RunningCluster, layout: Layout, runs: str = "runs") -> list[str]:
    from gangline.login import name_home  # noqa: PLC0415 - `up` has loaded it

    login, agents, slots = running.login, count(running.num_agents, "agent"), count(running.num_slots, "slot")
    home = name_home()
    shells = f"in any shell with {home}" if home else "in any shell"
    return [
        f"A cluster with {agents} and {slots} {runs}; gangline {shells} uses it.",
        f"  page:    {_one_time_address(running)} (signs you in once, for 10 minutes; then: gangline open)",
        f"  gateway: {login.address} (gRPC), http://{login.http_address}",
        f"  token:   {layout.admin_token}",
        f"  data:    {layout.root}",
        "  next:    gangline experiment create -f CONFIG.yaml FOLDER",
        "  stop:    gangline down",
        *([f"  note:    {running.exposure}"] if running.exposure else []),
    ]


def _one_time_address(running: RunningCluster) -> str:
    """Returns the address that signs this user in once; without a key where none can be made now."""
    address = f"http://{running.login.http_address}"
    try:
        with _connect(running.login.address, running.login.token) as client:
            return enter_address(address, client.create_key().key)
    except GanglineError:
        return f"{address}/"


def _running_record(running: RunningCluster, layout: Layout) -> dict[str, Any]:
    return {
        "gateway": running.login.address,
        "http": running.login.http_address,
        "token_file": str(layout.admin_token),
        "data_directory": str(layout.root),
        "supervisor_pid": running.supervisor.pid,
        "num_slots": running.num_slots,
        "exposure": running.exposure,
    }


def _local_table(data_dir: Path | None) -> tuple[ProcessTable | None, Layout]:
    """Returns the processes of the local cluster; None while none runs or the environment names another gateway."""
    from gangline.local.layout import layout_of  # noqa: PLC0415
    from gangline.local.process_table import load_table  # noqa: PLC0415
    from gangline.login import ADDRESS_VARIABLE  # noqa: PLC0415 - together with the layout

    layout = layout_of(data_dir)
    if data_dir is None and os.environ.get(ADDRESS_VARIABLE):
        return None, layout
    return load_table(layout.processes), layout


def _cluster(layout: Layout | None) -> tuple[ClusterView | None, dict[str, str], dict[str, str] | None]:
    """Returns the cluster, what trials can read of it by agent, and the problem if it does not answer. layout: of a
    local cluster; None for the one that commands use."""
    try:
        address, token = (None, None) if layout is None else _gateway_of(layout)
        with connect(address=address, token=token) as client:
            cluster = client.get_cluster()
            agents = [view.agent for view in client.list_agents()]
            exposures = {agent.id: agent.exposure for agent in agents if agent.exposure and not agent.lost_at}
            return cluster, exposures, None
    except GanglineError as error:
        return None, {}, {"code": error.code, "message": error.message}


def _gateway_of(layout: Layout) -> tuple[str, str]:
    """Returns the address and the token of a local cluster. Raises GanglineError `local.not_running`."""
    from gangline.local.local_login import is_running, login_of  # noqa: PLC0415 - status only
    from gangline.local.outage import describe_outage  # noqa: PLC0415

    try:
        if is_running(str(layout.root)):
            login = login_of(layout)
            return login.address, login.token
        problem = describe_outage(layout.root) or f"cannot open {layout.root}"
    except (OSError, ValueError, TypeError, KeyError) as failure:
        problem = f"cannot read the files of the cluster in {layout.root}: {failure}"
    raise GanglineError("local.not_running", problem, ErrorKind.UNAVAILABLE)


def _table_record(table: ProcessTable) -> dict[str, Any]:
    return {
        "is_supervised": table.supervisor.is_alive(),
        "supervisor_pid": table.supervisor.pid,
        "services": list(table.services),
    }


def _local_lines(table: ProcessTable, layout: Layout) -> list[str]:
    from gangline.local.outage import describe_shortage, state_of  # noqa: PLC0415 - together with the layout

    rows = [
        (
            entry.name,
            state_of(entry),
            entry.pid or "-",
            " ".join(f"{name} {address}" for name, address in entry.addresses.items()),
            f"{entry.restarts} ({entry.last_exit})" if entry.restarts else 0,
        )
        for entry in table.services
    ]
    notes = [f"note: {entry.note}" for entry in table.services if entry.note]
    shortage = describe_shortage(layout)
    lines = [*table_lines(_SERVICE_COLUMNS, rows), f"data: {layout.root}", *notes]
    if shortage:
        lines.append(f"note: {shortage}")
    if not table.supervisor.is_alive():
        lines.append("the supervisor is gone, so nothing restarts a service; run gangline down, then gangline up")
    return lines


def _cluster_lines(cluster: ClusterView) -> list[str]:
    instance = cluster.leader
    leader = f"{instance.id} at {instance.grpc_address}" if instance else "none, so nothing new starts"
    return [
        *([f"etcd:    {_etcd_text(cluster.etcd)}"] if cluster.etcd else []),
        f"leader:  {leader}",
        f"agents:  {cluster.num_agents}",
        f"slots:   {cluster.num_slots_used} of {cluster.num_slots} used",
        f"pending: {cluster.num_pending}",
        f"version: {cluster.version}",
    ]


def _exposure_lines(exposures: dict[str, str]) -> list[str]:
    """Returns one line for all agents with the same text."""
    return [
        f"note:    {', '.join(sorted(name for name, each in exposures.items() if each == text))}: {text}"
        for text in dict.fromkeys(exposures.values())
    ]


def _etcd_text(etcd: EtcdHealth) -> str:
    """Describes etcd as the gateway sees it."""
    if not etcd.problem:
        return f"{etcd.num_answering} of {count(etcd.num_members, 'member')} answer" if etcd.num_members else "answers"
    since = f", for {format_duration(max(0.0, time.time() - etcd.since))}" if etcd.since else ""
    return f"{etcd.problem}{since}"
