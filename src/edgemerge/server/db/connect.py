"""Open a database by its URL and bring its tables up to date."""

from __future__ import annotations

import os

from edgemerge.core.errors import SettingError
from edgemerge.server.db.base import Database, redact_url
from edgemerge.server.db.migrations import POSTGRES, SQLITE, Dialect, migrate
from edgemerge.server.db.sqlite import SqliteDatabase


def connect(url: str | os.PathLike[str]) -> Database:
    """Open postgresql://user:password@host/name, sqlite:///file, or a file by its name.

    After sqlite:/// stands the name of the file: sqlite:///fleets.db lies in the folder where
    the server was started, sqlite:////srv/fleets.db begins at the root.
    """
    database, dialect = _open(os.fspath(url))
    try:
        migrate(database, dialect)
    except BaseException:
        database.close()
        raise
    return database


def _open(url: str) -> tuple[Database, Dialect]:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return SqliteDatabase(url), SQLITE
    if scheme == "sqlite" and len(rest) > 1 and rest.startswith("/"):
        return SqliteDatabase(rest[1:]), SQLITE
    if scheme in ("postgresql", "postgres"):
        from edgemerge.server.db.postgres import PostgresDatabase  # noqa: PLC0415 - an extra

        return PostgresDatabase(url), POSTGRES
    raise SettingError(
        f"found the database address {redact_url(url)}, expected "
        "postgresql://user:password@host/name, "
        "sqlite:///file, or the name of a file"
    )
