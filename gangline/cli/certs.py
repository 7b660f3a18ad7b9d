"""`gangline certs ...`: a small authority for the certificates of a cluster's own programs. It calls no cluster."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gangline.cli.output.table_layout import Column
from gangline.cli.shared import Json, Wide, format_instant, new_group, show, show_table
from gangline.errors import invalid

if TYPE_CHECKING:
    from gangline.certificate.folder import CertificateFolder, StoredCertificate

app = new_group("Make and renew the certificates with which the services of a cluster talk over TLS.")

_DAY_SECONDS = 86400.0
_COLUMNS = (
    Column("FILE", 9, least=12),
    Column("NAME", 9, least=12),
    Column("HOSTS", 4, least=8),
    Column("SIGNED BY", 3, least=8),
    Column("EXPIRES", 8),
    Column("STATE", 7),
)
Folder = Annotated[
    Path, typer.Option("--dir", metavar="FOLDER", help="The folder with the authority.", file_okay=False)
]
_FOLDER = Path("certs")
Days = Annotated[int, typer.Option("--days", help="How long they hold.", min=1, max=36500)]
_SOON_SECONDS = 14 * _DAY_SECONDS


@app.command()
def init(
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="The last word of all names: small letters, digits, '-'.")
    ] = "gangline",
    folder: Folder = _FOLDER,
    days: Days = 3650,
    is_json: Json = False,
) -> None:
    """Make an authority for a cluster. Keep its folder where no user of the cluster can read it."""
    certificates = _open(folder)
    certificates.init(cluster, _now(), days)
    record = {"cluster": cluster, "ca_file": str(certificates.ca_path), "key_file": str(certificates.ca_key_path)}
    lines = [
        f"made an authority for the cluster {cluster} in {folder}; ca.key stays there, ca.crt goes to every machine",
        "next: gangline certs issue scheduler, gangline certs issue gateway --host NAME, gangline certs issue agent ID",
    ]
    show(record, is_json, lambda: lines)


@app.command()
def issue(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="scheduler, gateway or agent.")],
    agent_id: Annotated[str, typer.Argument(metavar="[ID]", help="Of an agent: its id.")] = "",
    *,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="A host name or an IP address of a gateway; may be repeated."),
    ] = None,
    folder: Folder = _FOLDER,
    days: Days = 365,
    is_json: Json = False,
) -> None:
    """Make the certificate of one service. Users reach a gateway at the host names that it has."""
    certificates = _open(folder)
    name = certificates.name_of(role, agent_id)
    if role == "gateway" and not hosts:
        raise invalid(
            "certs.no_host",
            "users check the host name of a gateway; give the names and addresses at which they reach it with --host",
        )
    path = certificates.issue(name, tuple(hosts or ()), _now(), days)
    record = {"name": str(name), "cert_file": str(path), "key_file": str(path.with_suffix(".key"))}
    show(record, is_json, lambda: [f"made {path} and {path.with_suffix('.key')} for {name}"])


@app.command()
def rotate(
    *,
    is_new_ca: Annotated[
        bool, typer.Option("--new-ca", help="Add an authority, which signs from now on; the former one stays trusted.")
    ] = False,
    drops_old_ca: Annotated[
        bool, typer.Option("--drop-old-ca", help="Remove the former authorities once nothing is signed by them.")
    ] = False,
    folder: Folder = _FOLDER,
    days: Annotated[
        int | None, typer.Option("--days", help="How long they hold; 365, an authority 3650.", min=1, max=36500)
    ] = None,
    is_json: Json = False,
) -> None:
    """Sign all certificates of the folder anew. Copy the files to the machines after each step; nothing restarts.

    A new authority takes three steps: rotate --new-ca, rotate, rotate --drop-old-ca.
    """
    if is_new_ca and drops_old_ca:
        raise invalid("certs.two_steps", "--new-ca and --drop-old-ca are two steps; copy the files in between")
    certificates = _open(folder)
    if is_new_ca:
        certificates.add_authority(_now(), days or 3650)
        text = f"{certificates.ca_path} has a new authority; copy it to every machine, then: gangline certs rotate"
        changed = [certificates.ca_path]
    elif drops_old_ca:
        num_dropped = certificates.drop_authorities()
        text = f"{certificates.ca_path} has one authority; {num_dropped} left it; copy it to every machine"
        changed = [certificates.ca_path] if num_dropped else []
    else:
        changed = certificates.rotate(_now(), days or 365)
        text = f"signed {len(changed)} certificates anew; copy each with its key to its machine"
    show({"changed": [str(path) for path in changed]}, is_json, lambda: [text])


@app.command("show")
def show_certificates(folder: Folder = _FOLDER, is_json: Json = False, is_wide: Wide = False) -> None:
    """List the authorities and certificates of the folder, with their names and their ends."""
    now = time.time()
    stored = _open(folder).all()
    records: list[dict[str, Any]] = [
        {**asdict(each.facts), "peers": [str(peer) for peer in each.facts.peers], "path": str(each.path)}
        for each in stored
    ]
    rows = [_row(each, now) for each in stored]
    show_table(records, _COLUMNS, rows, "no certificates", is_json=is_json, is_wide=is_wide)


def _row(stored: StoredCertificate, now: float) -> tuple[object, ...]:
    facts = stored.facts
    state = "EXPIRED" if facts.ends_at <= now else "SOON" if facts.ends_at - now < _SOON_SECONDS else "VALID"
    name = f"authority of {facts.cluster}" if facts.is_authority else ", ".join(map(str, facts.peers))
    signer = facts.issuer.partition(",")[0].removeprefix("CN=")
    return (stored.path.name, name, ", ".join(facts.hosts), signer, format_instant(facts.ends_at), state)


def _open(folder: Path) -> CertificateFolder:
    """Raises GanglineError `certs.no_library`."""
    try:
        from gangline.certificate.folder import CertificateFolder  # noqa: PLC0415 - a package of the extra `cluster`
    except ModuleNotFoundError as failure:
        raise invalid(
            "certs.no_library",
            "certificates need a package that is not installed here; install it with: pip install 'gangline[cluster]'",
        ) from failure
    return CertificateFolder(folder)


def _now() -> datetime:
    return datetime.now(UTC)
