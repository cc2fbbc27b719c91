"""The tenant and role that a token or a membership gives."""

from __future__ import annotations

import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.utils import timezone

from tenants import break_glass, members, tokens
from tenants.context import tenant_scope
from tenants.models import ApiToken, Membership, Role, Tenant

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture(autouse=True)
def no_cached_tokens():
    """Empties the cache of tokens, as in a new process."""
    tokens._known.clear()


def stored(token: ApiToken) -> ApiToken:
    with tenant_scope(token.tenant_id):
        return ApiToken.objects.get(pk=token.pk)


def change_elsewhere(token: ApiToken, **fields: object) -> None:
    """Change the row as another process would, without notifying this one."""
    with tenant_scope(token.tenant_id):
        ApiToken.objects.filter(pk=token.pk).update(**fields)


def test_a_token_is_256_random_bits_with_a_prefix_for_secret_scanners(tenant):
    token, secret = tokens.create(tenant, Role.ADMIN, "laptop")

    assert tokens.SECRET_SHAPE.fullmatch(secret)
    assert secret.startswith(token.prefix)
    assert len(token.prefix) == tokens.SHOWN_CHARACTERS


def test_the_database_stores_only_a_hash_that_is_not_accepted_as_a_token(tenant):
    token, secret = tokens.create(tenant, Role.ADMIN, "laptop")

    with connections["system"].cursor() as cursor:
        cursor.execute("SELECT to_jsonb(t)::text FROM tenants_apitoken t")
        dump = cursor.fetchone()[0]
    assert secret not in dump
    with pytest.raises(tokens.TokenRefused):
        tokens.principal_of(token.secret_hash)


def test_a_token_gives_its_tenant_role_and_scopes(tenant):
    token, secret = tokens.create(tenant.pk, "reviewer", "ci", scopes=["activities:read"])

    principal = tokens.principal_of(secret)

    assert (principal.tenant_id, principal.tenant) == (tenant.pk, "acme")
    assert (principal.role, principal.scopes) == (Role.REVIEWER, ("activities:read",))
    assert (principal.actor, principal.identity, str(principal)) == (
        "token:ci",
        f"token:{token.pk}",
        "token:ci",
    )
    assert principal.is_authenticated
    assert not principal.is_platform_admin


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "orc_",
        "orc_" + "a" * 43,
        "orc_" + "a" * 42,
        "orc_" + "a" * 44,
        "orc_" + "é" * 43,
        "x" * 100_000,
        "\x00",
        "\udcff",
    ],
)
def test_every_invalid_token_is_refused_with_the_same_message(tenant, secret):
    with pytest.raises(tokens.TokenRefused, match="The token is not valid"):
        tokens.principal_of(secret)


def test_a_revoked_token_is_refused_at_once_by_the_process_that_revoked_it(tenant):
    token, secret = tokens.create(tenant, Role.ADMIN, "laptop")
    tokens.principal_of(secret)

    tokens.revoke(token)

    with pytest.raises(tokens.TokenRefused, match="revoked"):
        tokens.principal_of(secret)


def test_a_token_revoked_by_another_process_is_refused_within_two_seconds(tenant, monkeypatch):
    token, secret = tokens.create(tenant, Role.ADMIN, "laptop")
    tokens.principal_of(secret)

    change_elsewhere(token, revoked_at=timezone.now())
    later = time.monotonic() + 2.0
    monkeypatch.setattr("tenants.caches.time", SimpleNamespace(monotonic=lambda: later))

    with pytest.raises(tokens.TokenRefused, match="revoked"):
        tokens.principal_of(secret)


def test_revoking_twice_keeps_the_time_of_the_first(tenant):
    token, _ = tokens.create(tenant, Role.ADMIN, "laptop")

    tokens.revoke(token)
    first = stored(token).revoked_at
    tokens.revoke(token)

    assert first is not None
    assert stored(token).revoked_at == first


def test_an_expired_token_is_refused_even_while_it_is_cached(tenant, monkeypatch):
    expires_at = timezone.now() + timedelta(minutes=5)
    _, secret = tokens.create(tenant, Role.ADMIN, "laptop", expires_at=expires_at)
    tokens.principal_of(secret)

    monkeypatch.setattr(tokens.clock, "now", lambda: expires_at)

    with pytest.raises(tokens.TokenRefused, match="expired at"):
        tokens.principal_of(secret)


def test_a_token_of_an_inactive_tenant_is_refused(make_tenant):
    _, secret = tokens.create(make_tenant(is_active=False), Role.ADMIN, "laptop")

    with pytest.raises(tokens.TokenRefused, match="not active"):
        tokens.principal_of(secret)


def member_with_token(tenant: Tenant, role: Role, token_role: Role) -> tuple[User, str]:
    eva = User.objects.create_user("eva")
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=eva, role=role)
    return eva, tokens.create(tenant, token_role, "eva's", user_id=eva.pk)[1]


@pytest.mark.parametrize(
    ("role", "token_role", "acting"),
    [("viewer", "admin", "viewer"), ("admin", "viewer", "viewer"), ("operator", "operator", "operator")],
)
def test_a_token_never_has_more_rights_than_its_person(tenant, role, token_role, acting):
    _, secret = member_with_token(tenant, Role(role), Role(token_role))

    assert tokens.principal_of(secret).role == acting


def test_the_token_of_a_superuser_who_is_a_member_may_be_that_of_an_admin(tenant):
    eva, secret = member_with_token(tenant, Role.VIEWER, Role.ADMIN)
    User.objects.filter(pk=eva.pk).update(is_superuser=True)

    assert tokens.principal_of(secret).role == "admin", "as in the console"


@pytest.mark.parametrize("ended", ["membership", "access", "account"])
def test_the_token_of_a_former_member_is_refused(tenant, ended):
    eva, secret = member_with_token(tenant, Role.ADMIN, Role.VIEWER)
    if ended == "access":
        User.objects.filter(pk=eva.pk).update(is_active=False)
    else:
        with tenant_scope(tenant.pk):
            Membership.objects.filter(user=eva).delete()
    if ended == "account":
        with connections["owner"].cursor() as cursor:
            cursor.execute("DELETE FROM auth_user WHERE id = %s", [eva.pk])

    with pytest.raises(tokens.TokenRefused, match="The token's person is no longer a member"):
        tokens.principal_of(secret)


def test_a_cached_token_takes_no_statement(tenant, django_assert_num_queries):
    _, secret = tokens.create(tenant, Role.ADMIN, "laptop")
    tokens.principal_of(secret)

    with django_assert_num_queries(0):
        assert tokens.principal_of(secret).tenant_id == tenant.pk


def test_last_use_is_written_at_most_once_a_minute(tenant):
    token, secret = tokens.create(tenant, Role.ADMIN, "laptop")

    tokens.principal_of(secret)
    first = stored(token).last_used_at
    tokens._known.clear()
    tokens.principal_of(secret)
    soon_after = stored(token).last_used_at
    change_elsewhere(token, last_used_at=timezone.now() - timedelta(seconds=61))
    tokens._known.clear()
    tokens.principal_of(secret)

    assert first is not None
    assert soon_after == first
    assert stored(token).last_used_at > first


def test_the_cache_of_tokens_is_bounded(tenant, monkeypatch):
    monkeypatch.setattr(tokens._known, "_entries", 3)
    secrets = [tokens.create(tenant, Role.VIEWER, str(number))[1] for number in range(10)]

    for secret in secrets:
        tokens.principal_of(secret)

    assert len(tokens._known._entries_by_key) <= 3


@pytest.mark.parametrize(
    "scope",
    [
        "",
        "admin",
        "activities",
        "activities:delete",
        "Activities:read",
        "a:b:read",
        "activities:read:x",
        "mailboxes:write:",
    ],
)
def test_a_malformed_scope_is_refused(tenant, scope):
    with pytest.raises(tokens.InvalidScope, match="is not a scope"):
        tokens.create(tenant, Role.ADMIN, "laptop", scopes=[scope])


def test_a_scope_of_an_unknown_resource_is_refused_with_the_known_ones(tenant):
    with pytest.raises(tokens.InvalidScope) as refused:
        tokens.create(tenant, Role.ADMIN, "laptop", scopes=["activities:read", "activity:read"])

    text = str(refused.value)
    assert text.startswith("'activity:read' names no resource; the resources are activities, agents, ")
    assert "mailboxes" in text


def test_every_invalid_scope_is_named(tenant):
    with pytest.raises(tokens.InvalidScope, match=r"^'all' .*; 'activity:read' "):
        tokens.create(tenant, Role.ADMIN, "laptop", scopes=["all", "read", "activity:read"])


def test_a_token_that_was_created_with_an_unknown_resource_stays_valid(tenant):
    token, secret = tokens.create(tenant, Role.ADMIN, "laptop")
    with tenant_scope(tenant.pk):
        ApiToken.objects.filter(pk=token.pk).update(scopes=["activity:read"])

    assert tokens.principal_of(secret).scopes == ("activity:read",)


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


def join(user: User, tenant: Tenant, role: Role = Role.REVIEWER, human_roles: tuple[str, ...] = ()) -> None:
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=user, role=role, human_roles=list(human_roles))


def test_a_member_of_one_tenant_acts_for_it_without_naming_it(ann, tenant, other_tenant):
    join(ann, tenant, Role.OPERATOR, ("editor", "legal"))

    principal = members.principal_of(ann)

    assert (principal.tenant_id, principal.role) == (tenant.pk, Role.OPERATOR)
    assert (principal.actor, principal.human_roles) == ("user:ann", ("editor", "legal"))
    assert principal.identity == f"user:{ann.pk}"


def test_a_member_of_several_tenants_must_name_one_of_them(ann, tenant, other_tenant):
    join(ann, tenant)
    join(ann, other_tenant, Role.ADMIN)

    assert members.principal_of(ann, "globex").role == Role.ADMIN
    assert members.principal_of(ann, "acme").role == Role.REVIEWER
    with pytest.raises(members.TenantNotNamed, match="acme, globex"):
        members.principal_of(ann)


def test_naming_a_tenant_of_others_gives_the_same_error_as_naming_an_unknown_one(ann, tenant, other_tenant):
    join(ann, tenant)

    with pytest.raises(members.MembershipRefused) as of_others:
        members.principal_of(ann, "globex")
    with pytest.raises(members.MembershipRefused) as of_nobody:
        members.principal_of(ann, "nowhere")

    assert str(of_others.value).replace("globex", "nowhere") == str(of_nobody.value)


def test_the_error_for_a_person_without_a_tenant_says_whom_to_ask(ann):
    with pytest.raises(members.MembershipRefused, match="Ask an administrator"):
        members.principal_of(ann)


def test_a_changed_role_applies_to_the_next_request(ann, tenant):
    join(ann, tenant, Role.ADMIN)
    members.principal_of(ann)

    with tenant_scope(tenant.pk):
        Membership.objects.update(role=Role.VIEWER)

    assert members.principal_of(ann).role == Role.VIEWER


def test_a_membership_in_an_inactive_tenant_is_refused(ann, make_tenant):
    join(ann, make_tenant("closed", is_active=False))

    with pytest.raises(members.MembershipRefused):
        members.principal_of(ann, "closed")


def test_a_superuser_acts_for_a_tenant_only_in_a_break_glass_session_for_it(
    tenant, other_tenant, make_tenant
):
    root = User.objects.create_superuser("root")
    make_tenant("closed", is_active=False)
    with pytest.raises(members.MembershipRefused, match="break-glass session"):
        members.principal_of(root, "acme")
    glass = break_glass.open_for(root, "acme", "They asked us to look.")
    with pytest.raises(members.MembershipRefused, match="break-glass session"):
        members.principal_of(root, "globex")

    principal = members.principal_of(root, "acme")

    assert (principal.tenant_id, principal.role, principal.is_platform_admin) == (tenant.pk, Role.ADMIN, True)
    assert principal.break_glass_id == glass.pk
    with pytest.raises(members.TenantNotNamed, match="X-Tenant"):
        members.principal_of(root)
    break_glass.open_for(root, "", "They asked us to look.")
    for absent in ("nowhere", "closed"):
        with pytest.raises(members.MembershipRefused):
            members.principal_of(root, absent)
    assert members.principal_of(root, "globex").tenant_id == other_tenant.pk


def test_people_see_only_their_own_memberships(ann, tenant, other_tenant):
    bob = User.objects.create_user("bob")
    join(ann, tenant)
    join(bob, tenant)
    join(bob, other_tenant)

    assert [membership.tenant.slug for membership in members.memberships_of(ann)] == ["acme"]
    assert [membership.tenant.slug for membership in members.memberships_of(bob)] == ["acme", "globex"]
