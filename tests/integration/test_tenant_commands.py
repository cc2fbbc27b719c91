"""`manage.py create_tenant` and `create_token`, as a person at a shell meets them."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from io import StringIO
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.utils import timezone

from tenants import members, registration, tokens
from tenants.context import tenant_scope
from tenants.models import ApiToken, Role, Tenant

pytestmark = pytest.mark.usefixtures("database")


def run(*arguments: str) -> str:
    output = StringIO()
    call_command(*arguments, stdout=output, stderr=StringIO())
    return output.getvalue().splitlines()[-1]


def test_create_tenant_prints_the_id_of_the_new_tenant_as_its_last_line():
    tenant_id = UUID(run("create_tenant", "acme", "--name", "Acme Inc."))

    with tenant_scope(tenant_id):
        assert Tenant.objects.get().name == "Acme Inc."


def test_a_shell_sees_a_taken_slug_as_exit_status_1_and_nothing_on_stdout(tenant, process_environment):
    command = [sys.executable, "manage.py", "create_tenant", tenant.slug, "--skip-checks"]

    again = subprocess.run(command, env=process_environment, capture_output=True, text=True, check=False)

    assert (again.returncode, again.stdout) == (1, ""), again.stderr
    assert "'acme' exists already" in again.stderr


def test_a_tenant_without_a_name_is_called_by_its_slug():
    tenant_id = UUID(run("create_tenant", "acme"))

    with tenant_scope(tenant_id):
        assert Tenant.objects.get().name == "acme"


def test_create_tenant_can_begin_with_an_admin_who_then_sees_the_tenant():
    ann = User.objects.create_user("ann")

    tenant_id = UUID(run("create_tenant", "acme", "--admin", "ann"))

    assert members.principal_of(ann).tenant_id == tenant_id
    assert members.principal_of(ann).role == Role.ADMIN


def test_create_tenant_makes_none_for_an_admin_who_is_not_there():
    with pytest.raises(CommandError, match="no person 'anna'"):
        run("create_tenant", "acme", "--admin", "anna")

    with pytest.raises(registration.TenantNotFound):
        registration.find("acme")


def test_create_tenant_refuses_a_slug_that_is_taken_although_the_other_tenant_is_invisible(tenant):
    with pytest.raises(CommandError, match="'acme' exists already"):
        run("create_tenant", "acme")


@pytest.mark.parametrize("slug", ["", "two words", "ümlaut", "a" * 64, "semi;colon"])
def test_create_tenant_refuses_what_is_no_slug(slug):
    with pytest.raises(CommandError, match="slug"):
        run("create_tenant", slug)


@pytest.mark.parametrize("name", ["n" * 201, "two\nlines", "turned \u202e round", "no\x00text"])
def test_create_tenant_refuses_what_is_no_name(name):
    with pytest.raises(CommandError, match="The name"):
        run("create_tenant", "acme", "--name", name)

    with pytest.raises(registration.TenantNotFound):
        registration.find("acme")


def test_create_token_refuses_a_name_that_would_not_read_as_it_is_stored(tenant):
    with pytest.raises(CommandError, match="one line of visible characters"):
        run("create_token", "--tenant", "acme", "--role", "viewer", "--name", "laptop\nroot")


def test_create_token_prints_a_token_that_works_as_its_last_line(tenant):
    secret = run("create_token", "--tenant", "acme", "--role", "operator", "--name", "laptop")

    principal = tokens.principal_of(secret)
    assert (principal.tenant_id, principal.role, principal.actor) == (
        tenant.pk,
        Role.OPERATOR,
        "token:laptop",
    )


def test_create_token_can_limit_a_token_in_time_and_scope(tenant):
    secret = run(
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


def test_a_token_is_a_platform_admins_only_when_asked_for(tenant):
    ordinary = run("create_token", "--tenant", "acme", "--role", "admin")
    platform = run("create_token", "--tenant", "acme", "--role", "admin", "--platform")

    assert not tokens.principal_of(ordinary).is_platform_admin
    assert tokens.principal_of(platform).is_platform_admin


def test_create_token_for_an_unknown_tenant_says_how_to_make_one():
    with pytest.raises(CommandError, match=r"no tenant 'nobody'.*create_tenant nobody"):
        run("create_token", "--tenant", "nobody", "--role", "admin")


@pytest.mark.parametrize("days", ["0", "-1", "3651", "soon"])
def test_create_token_refuses_a_life_that_is_no_number_of_days(tenant, days):
    with pytest.raises(CommandError, match="whole number of days"):
        run("create_token", "--tenant", "acme", "--role", "admin", f"--expires-in-days={days}")


def test_create_token_refuses_a_malformed_scope(tenant):
    with pytest.raises(CommandError, match="is not a scope"):
        run("create_token", "--tenant", "acme", "--role", "admin", "--scope", "everything")
