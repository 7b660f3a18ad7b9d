"""Opens the history's database and migrates its tables.

Owns the engine's settings and the two locks. One is around migrations, because gateways that share a PostgreSQL may
start together. The other is around each writing transaction, so that row ids become visible in their order there as
well. Called in threads only: everything here blocks.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.dialects import postgresql, sqlite

from gangline.errors import ErrorKind, GanglineError, invalid

MIGRATIONS = Path(__file__).parent / "migration"
# Keys of PostgreSQL's advisory locks: "gang" in ASCII, and a number.
MIGRATION_LOCK = 0x67616E67_0001
WRITE_LOCK = 0x67616E67_0002
# Also the longest wait for another process's lock on SQLite.
CONNECT_SECONDS = 10
WRITING = "gangline_writing"
# What PostgreSQL answers while it starts, stops or recovers, or has no connection left.
_NOT_SERVING_YET = ("starting up", "shutting down", "in recovery", "not yet accepting", "too many clients")


def open_database(url: str) -> sa.Engine:
    """Returns an engine on a migrated database. Raises GanglineError `database.*`, which names the URL without its
    password; UNAVAILABLE only for a server that is away."""
    parsed = _parse(url)
    try:
        engine = _create_engine(parsed)
        _migrate(engine)
    except ImportError as failure:
        raise invalid(
            "database.no_driver",
            f"the database {_shown(parsed)} needs the module {failure.name}; install gangline[postgres] for PostgreSQL",
        ) from failure
    except sa.exc.DBAPIError as failure:
        kind = ErrorKind.UNAVAILABLE if _is_away(parsed, failure) else ErrorKind.CONFLICT
        message = f"cannot open the database {_shown(parsed)}: {_first_line(failure.orig)}"
        raise GanglineError("database.unreachable", message, kind) from failure
    return engine


def _is_away(url: sa.URL, failure: sa.exc.DBAPIError) -> bool:
    """Returns whether a server cannot be reached, or does not serve yet. A wrong password or name of a database is a
    mistake, and so is a file of SQLite that cannot be opened."""
    if url.get_backend_name() != "postgresql" or not isinstance(failure, sa.exc.OperationalError):
        return False
    # A connection that fails has no SQLSTATE. "FATAL" is a server that answers.
    text = str(failure.orig)
    return "FATAL" not in text or any(words in text for words in _NOT_SERVING_YET)


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Opens one transaction that writes. Writers run one after another, so row ids are committed in their order."""
    with engine.connect() as raw:
        connection = raw.execution_options(**{WRITING: True})
        with connection.begin():
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(WRITE_LOCK)))
            yield connection


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Opens a transaction whose queries all see the same state of the database, whatever others write meanwhile."""
    with engine.connect() as raw:
        # SQLite's transactions are of this kind always.
        is_postgresql = engine.dialect.name == "postgresql"
        yield raw.execution_options(isolation_level="REPEATABLE READ") if is_postgresql else raw


# Returns whether a row replaces another one, from the columns of the new and of the old row. It is a function of a
# module, because statements are kept by it.
Condition = Callable[[Any, Any], sa.ColumnElement[bool]]


def upsert(
    connection: sa.Connection, target: sa.Table, rows: Sequence[Mapping[str, Any]], where: Condition | None = None
) -> None:
    """Inserts rows, or replaces those with the same primary key."""
    if rows:
        connection.execute(_upsert_statement(target, connection.dialect.name, tuple(rows[0]), where), rows)


@lru_cache(maxsize=64)
def _upsert_statement(target: sa.Table, dialect: str, names: tuple[str, ...], where: Condition | None) -> sa.Executable:
    """Kept, because making one takes SQLAlchemy longer than executing it."""
    insert = sqlite.insert(target) if dialect == "sqlite" else postgresql.insert(target)
    keys = [column.name for column in target.primary_key]
    values = {name: insert.excluded[name] for name in names if name not in keys}
    condition = where(insert.excluded, target.c) if where is not None else None
    return insert.on_conflict_do_update(index_elements=keys, set_=values, where=condition)


def measure_database(engine: sa.Engine) -> int:
    """Returns the size of the database in bytes, with indexes and free pages."""
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            return int(connection.scalar(sa.select(sa.func.pg_database_size(sa.func.current_database()))) or 0)
        pages, page_bytes = (connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in _SQLITE_SIZE)
        return int(pages) * int(page_bytes)


_SQLITE_SIZE = ("page_count", "page_size")


def _parse(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as failure:
        raise invalid("database.url", f"--database-url is no database URL; one looks like {EXAMPLE}") from failure
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise invalid(
            "database.kind",
            f"no support for a {parsed.get_backend_name()} database; use SQLite or PostgreSQL, as in {EXAMPLE}",
        )
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


# For messages.
EXAMPLE = "sqlite:////var/lib/gangline/gateway.db or postgresql://user@host/gangline"


def _create_engine(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() == "postgresql":
        return sa.create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT_SECONDS})
    engine = sa.create_engine(url)
    sa.event.listen(engine, "connect", _set_up_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _: Any) -> None:
    """Sets up a connection: WAL lets readers continue beside the writer; synchronous=FULL, because acknowledged records
    must survive a power cut."""
    connection.isolation_level = None
    for pragma in (f"busy_timeout={CONNECT_SECONDS * 1000}", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}")
    _turn_wal_on(connection)


def _turn_wal_on(connection: Any) -> None:
    """Turns WAL on, with retries: SQLite does not wait here, so the first change of the mode fails at once while
    another process that starts at the same time makes the same change."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as failure:
            if failure.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _begin_sqlite(connection: sa.Connection) -> None:
    """Begins a transaction. One that reads first and writes later would fail if another one wrote in between, so a
    writing one takes the lock at once."""
    is_writing = connection.get_execution_options().get(WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")


def _migrate(engine: sa.Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    with engine.connect() as raw:
        connection = raw.execution_options(**{WRITING: True})
        with connection.begin():
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
            config.attributes["connection"] = connection
            _upgrade(config)


def _upgrade(config: Config) -> None:
    try:
        command.upgrade(config, "head")
    except CommandError as failure:
        raise GanglineError(
            "database.newer",
            f"the database was made by a newer gangline ({failure}); start that version, or use another --database-url",
        ) from failure


def _shown(url: sa.URL) -> str:
    return url.render_as_string(hide_password=True)


def _first_line(failure: BaseException | None) -> str:
    return (str(failure).strip().splitlines() or ["unknown"])[0]
