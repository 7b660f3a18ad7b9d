"""Builds the command line of every service of a local cluster, and the order in which they start and stop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gangline.local.layout import Layout
from gangline.local.plan import ClusterPlan
from gangline.local.port import HOST

# The environment variable with the data directory. Every process of the cluster has it, so all of them can be found
# again.
MARKER = "GANGLINE_LOCAL_CLUSTER"


@dataclass(frozen=True, slots=True)
class Program:
    """A service's program."""

    name: str
    kind: str
    arguments: tuple[str, ...]
    addresses: dict[str, str]  # "host:port" by kind, or "unix:path"
    # Programs of one stage start together, later stages once those serve. Agents come last, so that a trial that starts
    # at once already knows the gateway.
    stage: int
    # unix socket whose /health reports that the service serves; without one its ready file does
    health_socket: Path | None = None
    # sockets that the program binds and leaves behind when it is killed; they are removed before it starts
    sockets: tuple[Path, ...] = ()
    umask: int = -1  # umask of the process; -1 for the one of this process
    environment: tuple[tuple[str, str], ...] = ()  # variables that the process has in addition
    note: str = ""  # one line that `up` and `status` show about the program; empty for none


def make_programs(layout: Layout, plan: ClusterPlan, python: str, etcd: Path, etcd_note: str = "") -> list[Program]:
    """Returns the programs of a plan. python: the interpreter whose packages contain the services. etcd: the binary."""
    address = {name: f"{HOST}:{port}" for name, port in plan.port_by_name.items()}
    etcd_program = replace(make_etcd_program(layout, etcd, layout.etcd_data), note=etcd_note)
    programs = [etcd_program, _scheduler(layout, address, python), _gateway(layout, address, python)]
    return programs + [_agent(layout, address, python, name, plan.slots) for name in plan.agent_names]


def etcd_member_flags(layout: Layout, data_directory: Path) -> dict[str, str]:
    """Returns the flags that make the member; those of `etcdctl snapshot restore` must be the same."""
    peer = f"unix://{layout.etcd_peer_socket.name}"
    return {
        "--name": "local",
        "--data-dir": str(data_directory),
        "--initial-advertise-peer-urls": peer,
        "--initial-cluster": f"local={peer}",
    }


def make_etcd_program(layout: Layout, binary: Path, data_directory: Path) -> Program:
    """Listens on unix sockets alone. Only this account can open them, so etcd needs no password and no certificate.

    The settings also make etcd wake up less often while nobody calls, because ranks train on the same cores.
    """
    client, peer = f"unix://{layout.etcd_socket.name}", f"unix://{layout.etcd_peer_socket.name}"
    flags = etcd_member_flags(layout, data_directory) | {
        "--listen-client-urls": client,
        "--advertise-client-urls": client,
        "--listen-peer-urls": peer,
        "--logger": "zap",
        "--log-level": "warn",
        # Each interval wakes etcd, also when nobody calls; 100 ms is its default. No other member waits for it.
        "--heartbeat-interval": "200",
        "--election-timeout": "1000",
        "--auto-compaction-mode": "revision",
        "--auto-compaction-retention": "1000",
    }
    words = tuple(word for flag in flags.items() for word in flag)
    arguments = (str(binary), *words, "--enable-grpc-gateway=false")
    addresses = {"client": f"unix:{layout.etcd_socket}"}
    sockets = (layout.etcd_socket, layout.etcd_peer_socket)
    # With several, Go wakes a second thread whenever the first one has begun something, in case there is more to do.
    # With one scheduler that writes there rarely is. Threads that wait for a disk do not count.
    environment = (("GOMAXPROCS", "1"),)
    return Program(
        "etcd", "etcd", arguments, addresses, 0, layout.etcd_socket, sockets, umask=0o077, environment=environment
    )


def _etcd_endpoint(layout: Layout) -> str:
    """Returns the socket's name, because services run in the data directory. A name always works for gRPC and the
    setting. A path may not: the kernel bounds its length, gRPC parses it as a URL, and a comma would divide it."""
    return f"unix:{layout.etcd_socket.name}"


def _scheduler(layout: Layout, address: dict[str, str], python: str) -> Program:
    return _service(
        "scheduler",
        "scheduler",
        layout,
        python,
        addresses={"grpc": address["scheduler.grpc"], "metrics": address["scheduler.metrics"]},
        flags={
            "--etcd-endpoints": _etcd_endpoint(layout),
            "--listen": address["scheduler.grpc"],
            "--metrics-listen": address["scheduler.metrics"],
            "--storage-url": _storage_url(layout),
            "--admin-token-file": str(layout.admin_token),
        },
    )


def _gateway(layout: Layout, address: dict[str, str], python: str) -> Program:
    return _service(
        "gateway",
        "gateway",
        layout,
        python,
        addresses={"grpc": address["gateway.grpc"], "http": address["gateway.http"]},
        flags={
            "--etcd-endpoints": _etcd_endpoint(layout),
            "--grpc-listen": address["gateway.grpc"],
            "--http-listen": address["gateway.http"],
            "--storage-url": _storage_url(layout),
            "--database-url": f"sqlite:///{layout.root / 'gateway' / 'gateway.db'}",
        },
    )


def _agent(layout: Layout, address: dict[str, str], python: str, name: str, slots: str) -> Program:
    metrics = address[f"{name}.metrics"]
    return _service(
        name,
        "agent",
        layout,
        python,
        addresses={"metrics": metrics},
        flags={
            "--scheduler-addresses": address["scheduler.grpc"],
            "--id": name,
            "--slots": slots,
            "--metrics-listen": metrics,
            "--state-dir": str(layout.root / "agents" / name),
        },
    )


def _service(
    name: str, kind: str, layout: Layout, python: str, *, addresses: dict[str, str], flags: dict[str, str]
) -> Program:
    common = {
        "--cluster-token-file": str(layout.cluster_token),
        "--ready-file": str(layout.ready(name)),
        "--advertise-host": HOST,
    }
    settings = layout.settings(kind)
    if settings.exists():
        common["--settings"] = str(settings)
    words = tuple(word for flag in (flags | common).items() for word in flag)
    return Program(name, kind, (python, "-m", f"services.{kind}", *words), addresses, 2 if kind == "agent" else 1)


def _storage_url(layout: Layout) -> str:
    return f"file://{layout.root / 'storage'}"
