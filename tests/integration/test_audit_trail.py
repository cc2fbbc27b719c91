"""The audit trail is append-only and chained, and later manipulation is detected."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, ProgrammingError, connections, transaction
from django.utils import timezone

from tenants import audit
from tenants.audit import verify_chains
from tenants.context import APP, OWNER, SYSTEM, system_scope, tenant_scope
from tenants.models import Tenant
from tenants.models.audit import AuditEntry
from tenants.models.retention import DepartedTenant
from tests.plans import recorded_statements, rows_read

MIA = audit.Actor("user", "7", "mia")


def record(tenant: Tenant, *operations: str) -> None:
    for operation in operations:
        with tenant_scope(tenant.pk):
            audit.record(operation, actor=MIA, tenant_id=tenant.pk, about=("notes", "1"))


def entries_of(tenant: Tenant) -> list[AuditEntry]:
    with tenant_scope(tenant.pk):
        return list(AuditEntry.objects.for_tenant(tenant).order_by("number"))


def tamper(statement: str, *parameters: Any) -> None:
    """Run a statement as somebody who owns the server could, without triggers."""
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(statement, parameters)


def verify(*arguments: str) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    try:
        call_command("verify_audit", *arguments, stdout=out, stderr=err)
    except SystemExit as end:
        return int(str(end.code)), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def test_entries_of_a_tenant_are_numbered_without_a_gap_and_each_holds_the_hash_of_the_one_before(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    record(tenant, "a", "b")
    record(other_tenant, "c")
    with tenant_scope(tenant.pk):
        audit.record("undone", actor=MIA, tenant_id=tenant.pk)
        transaction.set_rollback(True, using=APP)
    record(tenant, "d")

    entries = entries_of(tenant)
    assert [(entry.number, entry.operation) for entry in entries] == [(1, "a"), (2, "b"), (3, "d")]
    assert [entry.previous_hash for entry in entries] == ["0" * 64, entries[0].hash, entries[1].hash]
    assert [entry.number for entry in entries_of(other_tenant)] == [1]
    assert verify()[0] == 0


def test_twenty_simultaneous_entries_form_one_chain(tenant: Tenant) -> None:
    start = threading.Barrier(20)

    def add() -> None:
        start.wait()
        record(tenant, "at once")
        connections.close_all()

    threads = [threading.Thread(target=add) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [entry.number for entry in entries_of(tenant)] == list(range(1, 21))
    assert verify("--tenant", tenant.slug)[0] == 0


@pytest.mark.parametrize("alias", [APP, SYSTEM])
@pytest.mark.parametrize(
    "statement", ["UPDATE tenants_auditentry SET operation = 'x'", "DELETE FROM tenants_auditentry"]
)
def test_the_role_of_processes_may_neither_change_nor_delete_an_entry(
    alias: str, statement: str, tenant: Tenant
) -> None:
    record(tenant, "a")

    with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic(using=alias):
        connections[alias].cursor().execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tenants_auditentry SET operation = 'x'",
        "DELETE FROM tenants_auditentry",
        "TRUNCATE tenants_auditentry",
    ],
)
def test_the_owner_of_the_table_may_neither_change_nor_delete_an_entry(
    statement: str, tenant: Tenant
) -> None:
    record(tenant, "a")

    with pytest.raises(DatabaseError, match="only ever added to"), transaction.atomic(using=OWNER):
        connections[OWNER].cursor().execute(statement)


@pytest.mark.parametrize("function", ["audit_purge(%s, now())", "audit_forget(%s)"])
def test_the_role_of_requests_may_not_delete_a_chain(function: str, tenant: Tenant) -> None:
    with pytest.raises(ProgrammingError, match="permission denied"), tenant_scope(tenant.pk):
        connections[APP].cursor().execute(f"SELECT {function}", [tenant.pk])


def test_the_chain_of_the_platform_is_never_deleted(tenant: Tenant) -> None:
    with pytest.raises(ProgrammingError, match="the chain of the platform stays"), system_scope():
        connections[SYSTEM].cursor().execute("SELECT audit_forget(%s)", [UUID(int=0)])


@pytest.mark.parametrize("function", ["audit_purge(%s, now())", "audit_forget(%s)"])
def test_after_a_deletion_entries_are_protected_again(
    function: str, tenant: Tenant, other_tenant: Tenant
) -> None:
    record(tenant, "a")
    record(other_tenant, "b")

    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute(f"SELECT {function}", [tenant.pk])
        with pytest.raises(DatabaseError, match="only ever added to"), transaction.atomic(using=OWNER):
            cursor.execute("DELETE FROM tenants_auditentry")


def test_a_tenant_sees_its_own_entries_and_nobody_sees_those_of_the_platform(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    record(other_tenant, "theirs")
    with tenant_scope(tenant.pk):
        audit.record("login.failed", actor=audit.NOBODY)

    with tenant_scope(tenant.pk):
        assert not AuditEntry.objects.exists()
    with system_scope():
        assert AuditEntry.objects.filter(tenant=None).count() == 1


def test_a_tenant_may_not_add_to_the_chain_of_another(tenant: Tenant, other_tenant: Tenant) -> None:
    with pytest.raises(ProgrammingError, match="row-level security"), tenant_scope(tenant.pk):
        audit.record("forged", actor=MIA, tenant_id=other_tenant.pk)


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE tenants_auditentry SET actor_name = 'eve' WHERE number = 2", "entry 2 was changed"),
        ("UPDATE tenants_auditentry SET at = at - interval '1 day' WHERE number = 2", "entry 2 was changed"),
        ("UPDATE tenants_auditentry SET changes = '{\"a\": [1, 2]}' WHERE number = 2", "entry 2 was changed"),
        ("DELETE FROM tenants_auditentry WHERE number = 2", "entries 2 to 2 are missing"),
        ("DELETE FROM tenants_auditentry WHERE number = 1", "entries 1 to 1 are missing"),
    ],
)
def test_a_changed_or_removed_entry_is_detected(statement: str, fault: str, tenant: Tenant) -> None:
    record(tenant, "a", "b", "c")
    tamper(statement)

    code, _, err = verify()

    assert code == 1
    assert fault in err


def test_an_inserted_entry_is_detected_even_with_a_matching_hash(tenant: Tenant) -> None:
    record(tenant, "a", "b")
    tamper("UPDATE tenants_auditentry SET number = 3 WHERE number = 2")
    written_between = (
        "INSERT INTO tenants_auditentry SELECT gen_random_uuid(), chain, 2, at, actor_kind, actor_id, actor_name, 'forged', outcome,"
        " object_kind, object_id, changes, detail, request_id, ip, break_glass_id, hash, repeat('a', 64), tenant_id"
        " FROM tenants_auditentry WHERE number = 1"
    )
    columns = "(id, chain, number, at, actor_kind, actor_id, actor_name, operation, outcome, object_kind, object_id, changes, detail,"
    columns += " request_id, ip, break_glass_id, previous_hash, hash, tenant_id)"
    tamper(written_between.replace("tenants_auditentry SELECT", f"tenants_auditentry {columns} SELECT", 1))

    (chain,) = verify_chains(tenant.pk)

    assert any("entry 3" in fault for fault in chain.faults)


def test_a_truncated_chain_is_detected_by_its_checkpoint(tenant: Tenant, tmp_path: Any) -> None:
    record(tenant, "a", "b", "c")
    checkpoint = tmp_path / "checkpoint.json"
    checkpoint.write_text(verify("--json")[1])
    assert json.loads(checkpoint.read_text())[str(tenant.pk)] == [3, entries_of(tenant)[-1].hash]
    record(tenant, "d")
    assert verify("--checkpoint", str(checkpoint))[0] == 0

    tamper("DELETE FROM tenants_auditentry WHERE number > 2")

    assert verify()[0] == 0
    code, _, err = verify("--checkpoint", str(checkpoint))
    assert code == 1
    assert "the end is missing" in err
    tamper("DELETE FROM tenants_auditentry")
    assert verify("--checkpoint", str(checkpoint))[0] == 1


def test_a_checkpoint_remains_valid_after_its_tenant_was_purged(
    tenant: Tenant, other_tenant: Tenant, tmp_path: Any
) -> None:
    record(tenant, "a", "b")
    record(other_tenant, "c")
    checkpoint = tmp_path / "checkpoint.json"
    checkpoint.write_text(verify("--json")[1])
    record(tenant, "d")

    audit.forget_chain(tenant.pk, tenant.slug, actor=audit.actor_of_command("offboard_tenant"))

    assert verify("--checkpoint", str(checkpoint)) == (0, *verify()[1:])
    tamper("DELETE FROM tenants_auditentry WHERE chain = %s", other_tenant.pk)
    code, _, err = verify("--checkpoint", str(checkpoint))
    assert (code, err.strip()) == (
        1, f"{other_tenant.pk}: the end is missing: there was an entry 1 when the checkpoint was taken",
    )  # fmt: skip


def test_a_late_request_begins_no_new_chain_for_an_off_boarded_tenant(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    record(tenant, "a")
    with system_scope():
        DepartedTenant.objects.create(pk=tenant.pk, slug=tenant.slug)
    record(tenant, "still in the chain, which will be deleted")
    audit.forget_chain(tenant.pk, tenant.slug, actor=audit.actor_of_command("offboard_tenant"))

    record(tenant, "late")
    record(other_tenant, "b")

    with system_scope():
        chains = list(AuditEntry.objects.exclude(tenant_id=None).values_list("chain", "number"))
    assert chains == [(other_tenant.pk, 1)]


def test_a_checkpoint_that_a_purged_chain_never_reached_is_detected(tenant: Tenant, tmp_path: Any) -> None:
    record(tenant, "a", "b")
    checkpoint = tmp_path / "checkpoint.json"
    checkpoint.write_text(verify("--json")[1])
    tamper("DELETE FROM tenants_auditentry WHERE number = 2")

    audit.forget_chain(tenant.pk, tenant.slug, actor=audit.actor_of_command("offboard_tenant"))

    code, _, err = verify("--checkpoint", str(checkpoint))
    assert code == 1
    assert "the end is missing" in err


def test_the_command_prints_the_last_entry_of_each_chain(tenant: Tenant) -> None:
    record(tenant, "a", "b")

    assert (
        verify("--tenant", tenant.slug)[1].strip()
        == f"{tenant.pk}: 2 entries, the last is 2 {entries_of(tenant)[-1].hash}"
    )


@pytest.mark.parametrize("days", ["0", "36501", "99999999999"])
def test_the_command_refuses_to_purge_by_an_impossible_age(days: str) -> None:
    with pytest.raises(CommandError, match="from 1 to 36500"):
        call_command("purge_audit", f"--older-than-days={days}")


def test_purging_removes_the_oldest_entries_and_the_chain_records_it(tenant: Tenant) -> None:
    record(tenant, "a", "b", "c")

    assert (
        audit.purge_chain(
            tenant.pk, timezone.now() + timedelta(days=1), actor=audit.actor_of_command("purge_audit")
        )
        == 2
    )

    entries = entries_of(tenant)
    assert [(entry.number, entry.operation) for entry in entries] == [(3, "c"), (4, "audit.purged")]
    assert entries[1].detail["up_to"] == 2
    assert verify()[0] == 0
    tamper("DELETE FROM tenants_auditentry WHERE number = 3")
    assert verify()[0] == 1


@pytest.mark.parametrize("detail", ["[]", "{}", '{"up_to": "x", "last_hash": null}'])
def test_a_changed_record_of_a_deletion_is_detected(tenant: Tenant, tmp_path: Any, detail: str) -> None:
    by = audit.actor_of_command("test")
    record(tenant, "a", "b")
    checkpoint = tmp_path / "checkpoint.json"
    checkpoint.write_text(verify("--json")[1])
    audit.purge_chain(tenant.pk, timezone.now() + timedelta(days=1), actor=by)
    tamper("UPDATE tenants_auditentry SET detail = %s WHERE operation = 'audit.purged'", detail)

    assert "was changed" in verify()[2]

    audit.forget_chain(tenant.pk, tenant.slug, actor=by)
    tamper("UPDATE tenants_auditentry SET detail = %s WHERE operation = 'audit.forgotten'", detail)
    code, _, err = verify("--checkpoint", str(checkpoint))
    assert (code, "was changed" in err, "the end is missing" in err) == (1, True, True)


def test_chains_of_any_length_are_verified(tenant: Tenant, other_tenant: Tenant) -> None:
    record(tenant, "a")
    record(other_tenant, "b")
    tamper(
        "INSERT INTO tenants_auditentry"
        " SELECT made.* FROM tenants_auditentry e, generate_series(2, 3000) n,"
        " jsonb_populate_record(e, jsonb_build_object('id', gen_random_uuid(), 'number', n)) made WHERE e.chain = %s",
        tenant.pk,
    )
    with connections[OWNER].cursor() as cursor:
        cursor.execute("ANALYZE tenants_auditentry")

    with recorded_statements(SYSTEM) as statements:
        chains = audit.chains()

    ((alias, sql, parameters),) = statements
    assert {tenant.pk, other_tenant.pk} <= set(chains)
    assert chains == sorted(set(chains))
    assert rows_read(alias, sql, parameters) <= 3 * len(chains)


@pytest.mark.parametrize("forget", [False, True], ids=["purge", "forget"])
def test_chains_of_any_length_can_be_deleted(tenant: Tenant, forget: bool) -> None:
    record(tenant, "a")
    tamper(
        "INSERT INTO tenants_auditentry"
        " SELECT made.* FROM tenants_auditentry e, generate_series(2, 3000) n,"
        " jsonb_populate_record(e, jsonb_build_object('id', gen_random_uuid(), 'number', n)) made WHERE e.chain = %s",
        tenant.pk,
    )
    by, tomorrow = audit.actor_of_command("test"), timezone.now() + timedelta(days=1)
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute("SET statement_timeout = '2ms'")
    try:
        deleted = (
            audit.forget_chain(tenant.pk, "acme", actor=by)
            if forget
            else audit.purge_chain(tenant.pk, tomorrow, actor=by)
        )
    finally:
        with connections[SYSTEM].cursor() as cursor:
            cursor.execute("RESET statement_timeout")

    assert deleted == (3000 if forget else 2999)


def test_line_breaks_and_control_characters_forge_no_entries(tenant: Tenant) -> None:
    forged = "x\r\n2026-01-01 admin granted\u2028\x00\x1b[2K\ud800"
    with tenant_scope(tenant.pk):
        audit.record(forged, actor=audit.Actor("token", forged, forged), tenant_id=tenant.pk, about=(forged, forged),
                     changes=audit.changes_between(None, {forged: forged}))  # fmt: skip

    (entry,) = entries_of(tenant)

    everything = json.dumps([entry.operation, entry.actor, entry.about, entry.changes], ensure_ascii=False)
    assert not audit.CONTROL.search(everything)
    assert "x\\u000d\\u000a2026" in entry.operation
    assert verify()[0] == 0


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("target_type", "pipeline", "pipeline"),
        ("total_tokens", 12, 12),
        ("target", 4, 4),
        ("target", "anna@example.org", "[secret]"),
        ("target_sealed", "k1:abc", "[secret]"),
    ],
)
def test_only_secrets_are_replaced(name: str, value: object, stored: object) -> None:
    assert audit.redact(name, value) == stored


def test_secrets_and_texts_are_named_but_not_kept() -> None:
    before = {"auth": {"token": "sk-1"}, "notes": "Buy low", "priority": 3, "kept": 1}
    after = {
        "auth": {"token": "sk-2"},
        "notes": "Sell",
        "priority": 4,
        "kept": 1,
        "api_key": "k",
        "url": "https://u:p@x",
    }

    changes = audit.changes_between(before, after)

    assert changes == {
        "auth": ["[secret]", "[secret]"],
        "notes": ["[7 characters]", "[4 characters]"],
        "priority": [3, 4],
        "api_key": [None, "[secret]"],
        "url": [None, "[secret]"],
    }
    assert audit.redact("place", "https://hooks.example.com/T0/secret") == "[address]"
    assert audit.redact("cancel_reason", "Never mind") == "[10 characters]"
    assert audit.redact("steps", [{"id": "a", "prompt": "Do it", "nested": {"password": "p"}}]) == [
        {"id": "a", "prompt": "[5 characters]", "nested": {"password": "[secret]"}}
    ]
