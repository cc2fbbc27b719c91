"""Management commands that change something leave an entry that names the account of the machine."""

from __future__ import annotations

import getpass
from io import StringIO
from pathlib import Path

from django.core.management import call_command

from pipelines import deliverables
from tenants.context import system_scope
from tenants.models import Tenant
from tenants.models.audit import AuditEntry

FLOW = '{"key": "flow", "name": "Flow", "steps": [{"id": "a", "agent_role": "qa"}]}'


def _entries_of_command(*command: str) -> list[AuditEntry]:
    with system_scope():
        before = set(AuditEntry.objects.values_list("pk", flat=True))
    call_command(*command, stdout=StringIO(), stderr=StringIO())
    with system_scope():
        return list(AuditEntry.objects.exclude(pk__in=before).order_by("chain", "number"))


def test_each_command_that_changes_something_leaves_one_entry(tenant: Tenant, tmp_path: Path) -> None:
    flow = tmp_path / "flow.json"
    flow.write_text(FLOW)
    deliverables.create(tenant.pk, {"key": "blog", "name": "Blog", "pipelines": ["flow"]})
    commands: list[tuple[str, ...]] = [
        ("create_tenant", "made"),
        ("create_token", "--tenant", "acme", "--role", "operator", "--name", "ci"),
        ("load_pipeline", str(flow), "--tenant", "acme"),
        ("scheduler_settings", "--set", "http_client.timeout=120000"),
        ("scheduler_settings", "--unset", "http_client.timeout"),
        ("agents", "deploy", "qa", "1.0.0"),
        ("rotate_credentials",),
        ("start_periods", "--tenant", "acme"),
        ("offboard_tenant", "acme"),
    ]

    entries_by_command = {command: _entries_of_command(*command) for command in commands}

    for command, entries in entries_by_command.items():
        assert [entry.operation.split()[1] for entry in entries] == [command[0]], command
        assert entries[0].actor_kind == "command"
        assert entries[0].actor_name == getpass.getuser()
    for command in (commands[1], *commands[-2:]):
        assert entries_by_command[command][0].tenant_id == tenant.pk, command
    token = entries_by_command[commands[1]][0]
    assert token.detail.items() >= {"name": "ci", "role": "operator", "expires_at": None}.items()


def test_commands_that_only_read_leave_no_entry(tenant: Tenant) -> None:
    for command in (
        ("verify_audit",),
        ("scheduler_settings", "--show"),
        ("agents", "list"),
        ("rotate_credentials", "--dry-run"),
        ("start_periods",),
    ):
        assert _entries_of_command(*command) == [], command
