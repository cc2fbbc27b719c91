"""`manage.py create_tenant` and `create_token`."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.utils import timezone

from tenants import members, registration, tokens
from tenants.context import tenant_scope
from tenants.management.commands.create_tenant import Command
from tenants.models import ApiToken, Role, Tenant

pytestmark = pytest.mark.usefixtures("database")


def call(*arguments: str) -> str:
    output = StringIO()
    call_command(*arguments, stdout=output, stderr=StringIO())
    return output.getvalue().splitlines()[-1]


def test_create_tenant_prints_the_id_of_the_new_tenant_as_its_last_line():
    tenant_id = UUID(call("create_tenant", "acme", "--name", "Acme Inc."))

    with tenant_scope(tenant_id):
        assert Tenant.objects.get().name == "Acme Inc."


def test_a_taken_slug_exits_with_status_1_and_prints_only_to_stderr(tenant, capsys):
    with pytest.raises(SystemExit) as exit:
        Command().run_from_argv(["manage.py", "create_tenant", tenant.slug, "--skip-checks"])

    output = capsys.readouterr()
    assert (exit.value.code, output.out) == (1, "")
    assert "'acme' exists already" in output.err


def test_a_tenant_without_a_name_is_called_by_its_slug():
    tenant_id = UUID(call("create_tenant", "acme"))

    with tenant_scope(tenant_id):
        assert Tenant.objects.get().name == "acme"


def test_create_tenant_makes_the_named_person_its_admin():
    ann = User.objects.create_user("ann")

    tenant_id = UUID(call("create_tenant", "acme", "--admin", "ann"))

    assert members.principal_of(ann).tenant_id == tenant_id
    assert members.principal_of(ann).role == Role.ADMIN


def test_create_tenant_creates_nothing_for_an_unknown_admin():
    with pytest.raises(CommandError, match="no person 'anna'"):
        call("create_tenant", "acme", "--admin", "anna")

    with pytest.raises(registration.TenantNotFound):
        registration.find("acme")


def test_create_tenant_refuses_a_taken_slug_although_it_cannot_see_that_tenant(tenant):
    with pytest.raises(CommandError, match="'acme' exists already"):
        call("create_tenant", "acme")


@pytest.mark.parametrize("slug", ["", "two words", "ümlaut", "a" * 64, "semi;colon", "--x", "_x"])
def test_create_tenant_refuses_an_invalid_slug(slug):
    with pytest.raises(CommandError, match="slug"):
        call("create_tenant", "--", slug)


@pytest.mark.parametrize("name", ["n" * 201, "two\nlines", "turned \u202e round", "no\x00text"])
def test_create_tenant_refuses_an_invalid_name(name):
    with pytest.raises(CommandError, match="The name"):
        call("create_tenant", "acme", "--name", name)

    with pytest.raises(registration.TenantNotFound):
        registration.find("acme")


def test_create_token_refuses_a_name_of_more_than_one_line(tenant):
    with pytest.raises(CommandError, match="one line of visible characters"):
        call("create_token", "--tenant", "acme", "--role", "viewer", "--name", "laptop\nroot")


def test_create_token_prints_a_token_that_works_as_its_last_line(tenant):
    secret = call("create_token", "--tenant", "acme", "--role", "operator", "--name", "laptop")

    principal = tokens.principal_of(secret)
    assert (principal.tenant_id, principal.role, principal.actor) == (
        tenant.pk,
        Role.OPERATOR,
        "token:laptop",
    )


def test_create_token_sets_expiry_and_scopes(tenant):
    secret = call(
        "create_token",
        "--tenant",
        "acme",
        "--role",
        "admin",
        "--expires-in-days",
        "30",
        "--scope",
        "activities:read",
    )

    assert tokens.principal_of(secret).scopes == ("activities:read",)
    with tenant_scope(tenant.pk):
        expires_at = ApiToken.objects.get().expires_at
    assert abs(expires_at - timezone.now() - timedelta(days=30)) < timedelta(minutes=1)


def test_only_the_option_platform_makes_a_token_of_a_platform_admin(tenant):
    ordinary = call("create_token", "--tenant", "acme", "--role", "admin")
    platform = call("create_token", "--tenant", "acme", "--role", "admin", "--platform")

    assert not tokens.principal_of(ordinary).is_platform_admin
    assert tokens.principal_of(platform).is_platform_admin


def test_create_token_for_an_unknown_tenant_says_how_to_create_one():
    with pytest.raises(CommandError, match=r"no tenant 'nobody'.*create_tenant nobody"):
        call("create_token", "--tenant", "nobody", "--role", "admin")


@pytest.mark.parametrize("days", ["0", "-1", "3651", "soon"])
def test_create_token_refuses_an_expiry_that_is_not_a_valid_number_of_days(tenant, days):
    with pytest.raises(CommandError, match="whole number of days"):
        call("create_token", "--tenant", "acme", "--role", "admin", f"--expires-in-days={days}")


def test_create_token_refuses_a_malformed_scope(tenant):
    with pytest.raises(CommandError, match="is not a scope"):
        call("create_token", "--tenant", "acme", "--role", "admin", "--scope", "everything")
