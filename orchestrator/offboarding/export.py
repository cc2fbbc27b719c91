"""Export: writes all data of one tenant to one file, while the tenant continues to work.

PostgreSQL is read in one read-only snapshot, as the application's role, so row-level security applies. MongoDB is read afterwards, so an
output that was moved there meanwhile may be in the file twice, but none is missing.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from django.db import connections, transaction
from psycopg import sql

from activities import outputs, run_logs
from agents.command_line import transcripts
from orchestrator import offboarding
from tenants import clock
from tenants.audit import record_command
from tenants.context import APP, long_statements, set_tenant, system_scope
from tenants.exceptions import TenantError
from tenants.models import Tenant
from tenants.models.retention import DepartedTenant

FORMAT = "orchestrator-export/1"
PAGE = 50  # rows fetched at once; a row may have a megabyte
OUTPUTS, LOGS = "outputs.jsonl", "run_logs.jsonl"

Report = Callable[[str], object]


_ROWS = sql.SQL(
    "SELECT row_to_json(r)::text FROM (SELECT {columns} FROM {table} WHERE {key} = {tenant} ORDER BY {first}) AS r"
)


def export(tenant: Tenant, path: Path, report: Report) -> dict[str, dict[str, Any]]:
    """Write the file, and return facts about its members. If it raises `OSError`, `DatabaseError`, `PyMongoError` or `TenantError`,
    there is no new file."""
    of_tenant = [field.column for field in Tenant._meta.concrete_fields if field.column]
    exported = {"tenants_tenant": of_tenant, **offboarding.exported_columns()}
    with writing_archive(path) as archive:
        with transaction.atomic(using=APP, durable=True):
            _take_snapshot(tenant.pk)
            taken_at = clock.now()
            with long_statements(APP):
                for number, (table, columns) in enumerate(exported.items(), 1):
                    count = archive.write(f"tables/{table}.jsonl", _rows(tenant.pk, table, columns))
                    report(f"{number:>3}/{len(exported)}  {table}: {count}")
        report(f"outputs: {archive.write(OUTPUTS, _outputs(tenant.pk))}")
        report(f"logs of runs: {archive.write(LOGS, _logs(tenant.pk))}")
        for file in transcripts.list_before(tenant.pk, float("inf")):
            archive.write(f"transcripts/{file.name}", transcripts.read(tenant.pk, UUID(file.stem)) or ())
        _refuse_purged(tenant)
        archive.close(
            {
                "format": FORMAT,
                "tenant": {"id": str(tenant.pk), "slug": tenant.slug},
                "taken_at": taken_at,
                "left_out": offboarding.NOT_EXPORTED,
                "columns_left_out": _secret_columns(),
            }
        )
        _refuse_present(path)
        # Before the file appears, because nobody should get an export that the audit trail does not contain.
        record_command("export_tenant", tenant_id=tenant.pk, about=("tenant", tenant.pk))
    return archive.files


def _refuse_purged(tenant: Tenant) -> None:
    """Raise `TenantError` if a purge has begun, because the documents that were read after the snapshot may then be incomplete."""
    with system_scope():
        if DepartedTenant.objects.filter(pk=tenant.pk).exists():
            raise TenantError(
                f"{tenant.slug} was purged during the export, so its file would be incomplete.",
                code="tenant_purged",
            )


def _take_snapshot(tenant_id: UUID) -> None:
    with connections[APP].cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        set_tenant(tenant_id)
        cursor.execute("SELECT 1")  # The first query takes the snapshot; SET statements do not.


def _rows(tenant_id: UUID, table: str, columns: list[str]) -> Iterator[bytes]:
    key = "id" if table == "tenants_tenant" else "tenant_id"
    statement = _ROWS.format(
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        table=sql.Identifier(table),
        key=sql.Identifier(key),
        tenant=sql.Literal(tenant_id),
        first=sql.Identifier(columns[0]),
    )
    with connections[APP].chunked_cursor() as cursor:
        cursor.execute(statement)
        while page := cursor.fetchmany(PAGE):
            yield from (f"{row}\n".encode() for (row,) in page)


def _outputs(tenant_id: UUID) -> Iterator[bytes]:
    for document in outputs.collection().find({"tenant_id": str(tenant_id)}, batch_size=PAGE):
        yield orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def _logs(tenant_id: UUID) -> Iterator[bytes]:
    for document in run_logs.every_document_of(tenant_id, at_once=PAGE):
        yield orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def _secret_columns() -> dict[str, list[str]]:
    exported = offboarding.exported_columns()
    missing = {
        table: [name for name in names if name not in exported[table]]
        for table, names in offboarding.columns().items()
        if table in exported
    }
    return {table: names for table, names in missing.items() if names}


# The file of an export: a zip archive whose members are counted and hashed, with a manifest that lists them.


MANIFEST = "manifest.json"


@dataclass(slots=True)
class Archive:
    """An archive that is open for writing. `files` lists the members written so far."""

    zip: zipfile.ZipFile
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Write one member, and return the number of its pieces."""
        digest, size, count = hashlib.sha256(), 0, 0
        with self.zip.open(name, "w", force_zip64=True) as member:
            for piece in pieces:
                member.write(piece)
                digest.update(piece)
                size += len(piece)
                count += 1
        self.files[name] = {"rows": count, "bytes": size, "sha256": digest.hexdigest()}
        return count

    def close(self, manifest: dict[str, Any]) -> None:
        self.zip.writestr(
            MANIFEST, orjson.dumps({**manifest, "files": self.files}, option=orjson.OPT_INDENT_2)
        )


@contextmanager
def writing_archive(path: Path) -> Iterator[Archive]:
    """Open an archive that appears under its name only when it is complete. Only its owner may read it.

    Raises `FileExistsError` if there is a file with this name, also if another export has written it meanwhile.
    """
    _refuse_present(path)
    # A name of its own, so that two exports at once do not write into one file.
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            yield Archive(archive)
        _refuse_present(path)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _refuse_present(path: Path) -> None:
    if path.exists():
        raise FileExistsError(f"{path} exists already.")
