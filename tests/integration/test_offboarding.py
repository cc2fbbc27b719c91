"""Export and off-boarding of a tenant: all its data is exported, all of it is deleted, and other tenants are unaffected."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
import zipfile
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connections
from django.utils import timezone
from psycopg.sql import SQL

from activities import outputs, run_logs
from activities.admission import limits, scripts
from activities.maintenance import retention
from activities.models import Activity, NotificationChannel
from activities.run_tokens import RunToken
from agents.command_line import transcripts
from agents.contracts import AgentRequest, Completed, LogLine, Output
from agents.models import AgentConfig
from orchestrator import offboarding
from orchestrator.offboarding import erasure
from orchestrator.offboarding import export as offboarding_export
from pipelines.tables import fetched
from tenants import audit, redis, tokens
from tenants.audit import NOBODY, record
from tenants.context import SYSTEM, system_scope, tenant_scope
from tenants.models import Budget, Channel, Membership, Tenant
from tenants.models.audit import AuditEntry
from tenants.models.retention import DepartedTenant
from tests.engine import Engine, in_another_thread
from tests.scheduling import HOUR, NOON, executions, fire, make_schedule, statuses, tickers

CANARY = "canary-7f3a9c"
SECRET = "s3cret-canary-41d0"  # what the test looks for


def populate(engine: Engine, tenant: Tenant, word: str) -> UUID:
    """Create data of a tenant in every store; return its open activity."""
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Completed(Output(f"{word} output", {"x": word}))
    engine.submit(tenant, description=word)
    engine.drain()
    outputs.copy_waiting()
    finished = engine.agent.calls[-1]
    run_logs.record(
        RunToken(tenant.pk, finished.activity_id, finished.run_id, 1),
        [LogLine("text", f"{word} said while it worked")],
    )
    engine.submit(tenant, description=word)
    engine.drain()
    later = timezone.now() + timedelta(days=1)
    (open_activity,) = engine.submit(
        tenant, role="dev", description=f"{word} open", params={"x": word}, not_before=later
    )
    with tenant_scope(tenant.pk):
        AgentConfig.objects.filter(agent_id="qa").update(auth_sealed=f"{SECRET} of {word}")
        Channel.objects.create(tenant=tenant, kind="ads", name=word)
        Budget.objects.create(tenant=tenant, name=word, cap=5, period_start="2026-01-01")
        NotificationChannel.objects.create(
            tenant=tenant, name=word, kind="webhook", target_sealed=f"{SECRET} of {word}", target_shown=word
        )
    fetched.keep_rows(tenant.pk, "prices", [{"x": word}])
    transcript = transcripts.begin(tenant.pk, open_activity, secrets=())
    transcript.output(f"{word} printed\n".encode())
    transcript.close()
    return open_activity


def rows_with(text: str) -> set[str]:
    """The tables, of whatever owner, with a row that contains the text."""
    matches = set()
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace"
        )
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT count(*) FROM "{table}" t WHERE t::text LIKE %s', [f"%{text}%"])
            if cursor.fetchone()[0]:
                matches.add(table)
    return matches


def dump_of(tenant: Tenant) -> dict[str, str]:
    """All rows of a tenant as one text per table."""
    dump = {}
    with connections[SYSTEM].cursor() as cursor:
        for table in offboarding.tables():
            cursor.execute(
                f"SELECT coalesce(string_agg(t::text, '|' ORDER BY t::text), '') FROM {table} t WHERE tenant_id = %s",
                [tenant.pk],
            )
            dump[table] = cursor.fetchone()[0]
    return dump


def keys_with(*texts: str) -> set[bytes]:
    client, matches = redis.client(), set()
    for key in client.scan_iter():
        whole = key + (client.dump(key) or b"")
        matches |= {key} if any(text.encode() in whole for text in texts) else set()
    return matches


@pytest.fixture(autouse=True)
def no_outputs_of_other_tests(database: None) -> None:
    """Deletes the outputs that earlier tests have left in MongoDB."""
    database = outputs.collection().database
    for name in database.list_collection_names():
        database[name].delete_many({})


def documents_with(text: str) -> int:
    database = outputs.collection().database
    return sum(
        text in str(document)
        for name in database.list_collection_names()
        for document in database[name].find({})
    )


def command(*arguments: str) -> str:
    output = StringIO()
    call_command(*arguments, stdout=output, stderr=StringIO())
    return output.getvalue()


def export(tenant: Tenant, path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    command("export_tenant", tenant.slug, "--to", str(path))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return members, json.loads(members.pop("manifest.json"))


def test_every_table_with_tenants_is_exported_or_excluded_with_a_reason(database: None) -> None:
    tables = set(offboarding.tables())

    assert tables == set(offboarding.exported_columns()) | set(offboarding.NOT_EXPORTED)
    assert all(reason for reason in (*offboarding.NOT_EXPORTED.values(), *offboarding.KEPT.values()))
    assert set(offboarding.NOT_EXPORTED) | set(offboarding.KEPT) <= tables
    assert set(offboarding.children_first()) == tables - set(offboarding.KEPT)


def test_an_export_contains_everything_except_secrets(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, tmp_path: Path
) -> None:
    populate(engine, tenant, CANARY)
    populate(engine, other_tenant, "globex-word")
    _, token = tokens.create(tenant, "admin", "for the export")

    members, manifest = export(tenant, tmp_path / "acme.zip")

    text = b"".join(members.values()).decode()
    assert set(members) == set(manifest["files"])
    for name, content in members.items():
        assert hashlib.sha256(content).hexdigest() == manifest["files"][name]["sha256"]
    assert manifest["files"]["tables/activities_activity.jsonl"]["rows"] == 3
    assert {json.loads(line)["tenant_id"] for line in members["outputs.jsonl"].splitlines()} == {
        str(tenant.pk)
    }
    assert f"{CANARY} printed" in text
    assert f"{CANARY} output" in members["outputs.jsonl"].decode()
    assert f"{CANARY} said while it worked" in members["run_logs.jsonl"].decode()
    for hidden in (SECRET, token, tokens.hash_of(token), "globex", str(other_tenant.pk)):
        assert hidden not in text
    assert manifest["columns_left_out"]["agents_agentconfig"] == ["auth_sealed", "signing_sealed"]
    assert "tenants_auditentry" not in manifest["columns_left_out"], "else the trail could not be verified"
    assert (tmp_path / "acme.zip").stat().st_mode & 0o077 == 0


def test_an_export_is_a_consistent_snapshot(
    engine: Engine, tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.serve(tenant)
    engine.submit(tenant)
    take_snapshot = offboarding_export._take_snapshot

    def take_snapshot_then_submit(tenant_id: UUID) -> None:
        take_snapshot(tenant_id)
        in_another_thread(lambda: engine.submit(tenant, count=5))

    monkeypatch.setattr(offboarding_export, "_take_snapshot", take_snapshot_then_submit)
    members, manifest = export(tenant, tmp_path / "acme.zip")

    count = manifest["files"]["tables/activities_activity.jsonl"]["rows"]
    rows = members["tables/activities_activity.jsonl"].splitlines()
    assert count == len(rows) == 1
    assert manifest["files"]["tables/activities_wake.jsonl"]["rows"] == 1


def test_a_failed_export_leaves_no_file_and_an_existing_one_is_not_overwritten(
    tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "acme.zip"
    with monkeypatch.context() as broken:
        broken.setattr(offboarding_export, "_outputs", _fail)
        with pytest.raises(CommandError, match="file was deleted"):
            command("export_tenant", "acme", "--to", str(path))
    assert list(tmp_path.iterdir()) == []

    path.write_text("theirs")
    with pytest.raises(CommandError, match="exists already"):
        command("export_tenant", "acme", "--to", str(path))
    assert path.read_text() == "theirs"


def test_two_exports_to_one_file_do_not_mix(
    tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "acme.zip"
    take_snapshot = offboarding_export._take_snapshot

    def take_snapshot_then_export(tenant_id: UUID) -> None:
        take_snapshot(tenant_id)
        monkeypatch.setattr(offboarding_export, "_take_snapshot", take_snapshot)
        in_another_thread(lambda: command("export_tenant", "acme", "--to", str(path)))

    monkeypatch.setattr(offboarding_export, "_take_snapshot", take_snapshot_then_export)
    with pytest.raises(CommandError, match="exists already"):
        command("export_tenant", "acme", "--to", str(path))

    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {*json.loads(archive.read("manifest.json"))["files"], "manifest.json"} == set(
            archive.namelist()
        )
    assert list(tmp_path.iterdir()) == [path]
    with tenant_scope(tenant.pk):
        assert AuditEntry.objects.filter(operation="manage.py export_tenant").count() == 1


def test_an_export_does_not_hold_many_rows_in_memory(engine: Engine, tenant: Tenant, tmp_path: Path) -> None:
    engine.serve(tenant)
    (activity,) = engine.submit(tenant)
    with tenant_scope(tenant.pk), connections["default"].cursor() as cursor:
        cursor.execute(
            "INSERT INTO activities_outputspool (id, tenant_id, activity_id, content, content_type, created_at)"
            " SELECT gen_random_uuid(), %s, %s, repeat('x', 100000), 'text/plain', now() FROM generate_series(1, 300)",
            [tenant.pk, activity],
        )
    tracemalloc.start()
    try:
        command("export_tenant", "acme", "--to", str(tmp_path / "acme.zip"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 20_000_000


def test_an_export_may_wait_long_for_the_rows_of_a_table(
    tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections["default"].ensure_connection()
    monkeypatch.setattr(connections["default"].connection, "answer_within_seconds", 0.2)
    slow = "SELECT row_to_json(r)::text || (SELECT pg_sleep(0.5)::text) FROM (SELECT {columns} FROM {table} WHERE {key} = {tenant}) AS r"
    monkeypatch.setattr(offboarding_export, "_ROWS", SQL(slow))

    members, _ = export(tenant, tmp_path / "acme.zip")

    assert json.loads(members["tables/tenants_tenant.jsonl"])["slug"] == "acme"


def test_an_export_that_cannot_be_recorded_leaves_no_file(
    tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "record", _refuse)

    with pytest.raises(CommandError, match="file was deleted"):
        command("export_tenant", "acme", "--to", str(tmp_path / "acme.zip"))

    assert list(tmp_path.iterdir()) == []


def test_an_export_during_which_the_tenant_is_purged_leaves_no_file(
    engine: Engine, tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    populate(engine, tenant, CANARY)
    take_snapshot = offboarding_export._take_snapshot

    def take_snapshot_then_purge(tenant_id: UUID) -> None:
        take_snapshot(tenant_id)
        in_another_thread(lambda: command("offboard_tenant", "acme", "--purge", "--confirm", "acme"))

    monkeypatch.setattr(offboarding_export, "_take_snapshot", take_snapshot_then_purge)

    with pytest.raises(CommandError, match="acme was purged during the export"):
        command("export_tenant", "acme", "--to", str(tmp_path / "acme.zip"))

    assert list(tmp_path.iterdir()) == []


def _fail(*arguments: Any) -> Any:
    raise OSError("the disk is full")


def _refuse(*arguments: Any, **named: Any) -> Any:
    raise DatabaseError("no answer")


def test_a_suspended_tenant_can_neither_call_the_api_nor_start_work(
    engine: Engine, tenant: Tenant, api: Any
) -> None:
    engine.serve(tenant)
    client = api()
    secret = client._credentials["HTTP_AUTHORIZATION"].removeprefix("Bearer ")
    (queued,) = engine.submit(tenant)
    assert client.get("/api/v1/activities/").status_code == 200

    output = command("offboard_tenant", "acme")

    tokens._known.forget(tokens.hash_of(secret))  # each process does this within a second
    assert client.get("/api/v1/activities/").status_code == 401
    assert engine.status(tenant, queued) == "cancelled"
    engine.drain()
    assert engine.agent.calls == []
    assert "export_tenant acme" in output
    with system_scope():
        assert not Tenant.objects.get(pk=tenant.pk).is_active
        assert Activity.objects.filter(tenant=tenant).count() == 1, "nothing is deleted yet"


def test_no_batch_or_queued_execution_of_a_suspended_tenant_begins(engine: Engine, tenant: Tenant) -> None:
    tickers(tenant, 4)
    source = "db:ticker:all:id?batchSize=2&staggerDelay=0&batch_gate=completion"
    schedule = make_schedule(tenant, params={"ticker": source}, overlap="queue_one")
    fire(schedule, NOON + HOUR)
    fire(schedule, NOON + 2 * HOUR)
    assert [execution.status for execution in executions(tenant)] == ["running", "queued"]

    command("offboard_tenant", "acme")

    assert statuses(tenant) == ["cancelled", "cancelled"]
    with tenant_scope(tenant.pk):
        assert list(Activity.objects.values_list("status", flat=True)) == ["cancelled", "cancelled"]


def test_a_purge_leaves_nothing_of_the_tenant_and_does_not_change_others(
    engine: Engine, tenant: Tenant, other_tenant: Tenant
) -> None:
    populate(engine, tenant, CANARY)
    populate(engine, other_tenant, "globex-word")
    _add_admin_log_entry(tenant)
    with tenant_scope(tenant.pk):
        record(f"said {CANARY}", actor=NOBODY, tenant_id=tenant.pk)
    command("offboard_tenant", "acme")
    before, documents = dump_of(other_tenant), documents_with("globex-word")
    assert len(rows_with(CANARY)) > 5

    command("offboard_tenant", "acme", "--purge", "--confirm", "acme")

    assert rows_with(CANARY) == set()
    # The platform keeps a tombstone and the audit entry of the purge.
    assert rows_with(str(tenant.pk)) == {"tenants_departedtenant", "tenants_auditentry"}
    with system_scope():
        assert not AuditEntry.objects.filter(chain=tenant.pk).exists()
        entry = AuditEntry.objects.get(operation="audit.forgotten")
    assert (entry.tenant_id, entry.detail["slug"]) == (None, "acme")
    assert entry.detail["entries"] == entry.detail["up_to"] >= 1
    assert keys_with(CANARY, str(tenant.pk)) == set()
    assert documents_with(CANARY) == documents_with(str(tenant.pk)) == 0
    assert transcripts.list_before(tenant.pk, float("inf")) == []
    assert dump_of(other_tenant) == before
    assert documents_with("globex-word") == documents
    assert fetched.read_cached_rows(other_tenant.pk, "prices") == [{"x": "globex-word"}]
    with system_scope():
        tombstone = DepartedTenant.objects.get()
    assert (tombstone.slug, tombstone.counts["activities_activity"], tombstone.counts["tenants_tenant"]) == (
        "acme",
        3,
        1,
    )
    assert tombstone.erased_at is not None


def test_a_purge_during_a_call_keeps_the_counts_of_other_tenants_right(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker keeps the slots of a cancelled run until its call ends, and a token that is still cached submits after the suspension."""
    engine.serve(tenant)
    engine.serve(other_tenant)
    suspend = erasure.suspend

    def suspend_before_a_submission(*arguments: Any) -> None:
        suspend(*arguments)
        limits.refresh()
        engine.submit(tenant, count=2)

    def purge_during_the_call(request: AgentRequest) -> Completed:
        in_another_thread(lambda: command("offboard_tenant", "acme", "--purge", "--confirm", "acme"))
        scripts.check_structure()
        assert scripts.audit(withdraw_orphans=False) == []
        return Completed(Output("too late"))

    monkeypatch.setattr(erasure, "suspend", suspend_before_a_submission)
    engine.agent.behaviour = purge_during_the_call
    engine.submit(tenant)

    engine.drain()

    scripts.check_structure()
    assert keys_with(str(tenant.pk)) == set()
    engine.agent.behaviour = lambda request: Completed(Output("done"))
    (others,) = engine.submit(other_tenant)
    engine.drain()
    assert engine.status(other_tenant, others) == "done"


def _add_admin_log_entry(tenant: Tenant) -> None:
    user = get_user_model().objects.create_user("sam")
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=user)
        channel = Channel.objects.get(tenant=tenant)
    LogEntry.objects.create(
        user=user,
        content_type=ContentType.objects.get_for_model(Channel),
        object_id=str(channel.pk),
        object_repr=str(channel),
        action_flag=CHANGE,
    )


def test_a_purge_that_failed_half_way_is_completed_by_another(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    populate(engine, tenant, CANARY)
    purge = ("offboard_tenant", "acme", "--purge", "--confirm", "acme")
    with monkeypatch.context() as broken:
        broken.setattr(erasure, "delete_from_redis", _fail)
        with pytest.raises(OSError, match="disk"):
            command(*purge)
    assert rows_with(CANARY) == set()
    assert documents_with(CANARY) > 0

    command(*purge)

    assert documents_with(CANARY) == 0
    with system_scope():
        assert DepartedTenant.objects.get().counts["activities_activity"] == 3
    with pytest.raises(CommandError, match="There is no tenant"):
        command(*purge)


def test_a_purge_that_failed_is_completed_before_a_new_tenant_of_the_same_slug_is_touched(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    populate(engine, tenant, CANARY)
    purge = ("offboard_tenant", "acme", "--purge", "--confirm", "acme")
    with monkeypatch.context() as broken:
        broken.setattr(erasure, "delete_from_redis", _fail)
        with pytest.raises(OSError, match="disk"):
            command(*purge)
    command("create_tenant", "acme")

    command(*purge)

    assert documents_with(CANARY) == 0
    with system_scope():
        assert Tenant.objects.get(slug="acme").is_active


def test_an_output_that_is_copied_during_a_purge_is_deleted_however_long_that_takes(
    engine: Engine, tenant: Tenant
) -> None:
    command("offboard_tenant", "acme", "--purge", "--confirm", "acme")
    with system_scope():
        DepartedTenant.objects.update(began_at=timezone.now() - timedelta(days=1))
    outputs.collection().insert_one({"_id": "late", "tenant_id": str(tenant.pk)})

    assert retention.clean_up_departed() == 1

    assert documents_with(str(tenant.pk)) == 0


def test_very_many_documents_are_deleted_in_portions(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "FORGOTTEN_AT_ONCE", 2)
    documents = [{"_id": f"many-{number}", "tenant_id": str(tenant.pk)} for number in range(5)]
    outputs.collection().insert_many(documents)

    assert retention.forget_tenant(tenant.pk) == 5

    assert documents_with(str(tenant.pk)) == 0


def test_a_purge_requires_the_slug_as_confirmation_and_no_other_slug_is_accepted(tenant: Tenant) -> None:
    for arguments in (("--purge",), ("--purge", "--confirm", "globex"), ("--confirm", "globex")):
        with pytest.raises(CommandError, match="cannot be undone"):
            command("offboard_tenant", "acme", *arguments)

    with system_scope():
        assert Tenant.objects.get(pk=tenant.pk).is_active
