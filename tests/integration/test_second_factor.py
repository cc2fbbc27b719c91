"""The second factor at the login: codes and recovery codes, required of admins where the platform demands it, optional otherwise."""

from __future__ import annotations

import base64
import re
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client

from console import second_factor
from tenants import clock
from tenants.context import system_scope, tenant_scope
from tenants.models import Membership, SecondFactor, Tenant
from tenants.models.audit import AuditEntry

PASSWORD = "a long enough password"
PAGE = "/second-factor/"


@pytest.fixture
def required(settings: Any) -> None:
    settings.ORCHESTRATOR_SECOND_FACTOR = "required"


@pytest.fixture
def root(database: None) -> User:
    return User.objects.create_superuser("root", password=PASSWORD)


def member(tenant: Tenant, role: str) -> User:
    user = User.objects.create_user(role, password=PASSWORD)
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=user, role=role)
    return user


def sign_in(user: User, login: str = "/login/") -> Client:
    client = Client()
    assert client.post(login, {"username": user.username, "password": PASSWORD}).status_code == 302
    return client


def code(secret: bytes, later: int = 0) -> str:
    return second_factor.code_at(secret, int(clock.now().timestamp()) // 30 + later)


def set_up(client: Client) -> tuple[bytes, list[str]]:
    """Set the second factor up; return its secret and the recovery codes that the page shows."""
    assert client.post(PAGE, {"begin": "1"}).status_code == 302
    page = client.get(PAGE).content.decode()
    secret = base64.b32decode(re.search(r"<code>([A-Z2-7 ]+)</code>", page)[1].replace(" ", ""))  # type: ignore[index]
    done = client.post(PAGE, {"code": code(secret)})
    assert done.status_code == 200, done.content
    codes = re.findall(r"[A-Z2-7]{5}-[A-Z2-7]{5}", done.content.decode())
    assert len(codes) == 10
    return secret, codes


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(59, "287082"), (1111111109, "081804"), (1234567890, "005924"), (20000000000, "353130")],
)
def test_codes_are_those_of_rfc_6238(seconds: int, expected: str) -> None:
    assert second_factor.code_at(b"12345678901234567890", seconds // 30) == expected


@pytest.mark.parametrize("login", ["/login/", "/admin/login/"])
def test_an_admin_who_has_not_proved_a_second_factor_can_open_nothing(
    login: str, required: None, root: User
) -> None:
    client = sign_in(root, login)

    for address in ("/", "/inbox/", "/admin/", "/admin/auth/user/", "/tenants/"):
        assert client.get(address).status_code == 302, address
        assert "/login/" in client.get(address)["Location"]
    assert client.get("/api/v1/activities/").status_code == 401
    assert client.get("/live/").status_code in (401, 403)
    assert client.post("/admin/break-glass/", {"reason": "because"}).status_code == 302
    redirect = client.get(f"{login}?next=/admin/auth/user/")
    assert redirect["Location"] == f"{PAGE}?next=%2Fadmin%2Fauth%2Fuser%2F"

    set_up(client)

    assert client.get("/admin/auth/user/").status_code == 200


def test_every_sign_in_asks_for_a_code_and_each_code_works_once(required: None, root: User) -> None:
    secret, _ = set_up(sign_in(root))
    client, other = sign_in(root), sign_in(root)
    session = client.cookies["sessionid"].value

    repeated = client.post(PAGE, {"code": code(secret)})  # the set-up has used this code
    assert repeated.status_code == 400
    right = client.post(PAGE, {"code": code(secret, later=1), "next": "/admin/auth/user/"})
    again = other.post(PAGE, {"code": code(secret, later=1)})

    assert (right.status_code, right["Location"]) == (302, "/admin/auth/user/")
    assert client.cookies["sessionid"].value != session
    assert client.get("/admin/auth/user/").status_code == 200
    assert again.status_code == 400
    assert other.get("/admin/auth/user/").status_code == 302


@pytest.mark.parametrize("later", [-1, 0, 1])
def test_a_code_is_accepted_if_the_phones_clock_is_at_most_half_a_minute_wrong(
    later: int, root: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, _ = set_up(sign_in(root))
    SecondFactor.objects.update(last_step=-1)
    clock_at_first = clock.now()
    monkeypatch.setattr(clock, "now", lambda: clock_at_first)

    assert sign_in(root).post(PAGE, {"code": code(secret, later=2)}).status_code == 400
    assert sign_in(root).post(PAGE, {"code": code(secret, later=-2)}).status_code == 400
    assert sign_in(root).post(PAGE, {"code": code(secret, later=later)}).status_code == 302


def test_a_code_that_is_sent_several_times_at_once_works_once(database: None, root: User) -> None:
    secret, _ = set_up(sign_in(root))
    barrier, same_code = Barrier(4), code(secret, later=1)

    def verify(_: int) -> bool:
        barrier.wait()
        try:
            return second_factor.verify(root, same_code)[0]
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(verify, range(4))) == [False, False, False, True]


def test_a_recovery_code_works_once_and_new_codes_replace_the_old_ones(required: None, root: User) -> None:
    first = sign_in(root)
    secret, codes = set_up(first)

    assert sign_in(root).post(PAGE, {"code": codes[0].lower()}).status_code == 302
    assert sign_in(root).post(PAGE, {"code": codes[0]}).status_code == 400
    renewed = first.post(PAGE, {"code": code(secret, later=1), "renew": "1"})

    assert "Save these recovery codes" in renewed.content.decode()
    assert sign_in(root).post(PAGE, {"code": codes[1]}).status_code == 400


def test_wrong_codes_lock_the_account_like_wrong_passwords(required: None, root: User) -> None:
    secret, _ = set_up(sign_in(root))
    client = sign_in(root)

    statuses = [client.post(PAGE, {"code": f"{number:06}"}).status_code for number in range(6)]

    assert statuses == [400] * 5 + [429]
    assert client.post(PAGE, {"code": code(secret, later=1)}).status_code == 429
    with system_scope():
        operations = set(AuditEntry.objects.filter(tenant=None).values_list("operation", flat=True))
    assert {"second_factor.set_up", "second_factor.failed", "second_factor.locked"} <= operations


@pytest.mark.parametrize(("role", "must_have_one"), [("admin", True), ("operator", False), ("viewer", False)])
def test_only_admins_of_a_tenant_must_have_a_second_factor(
    role: str, must_have_one: bool, required: None, tenant: Tenant
) -> None:
    client = sign_in(member(tenant, role))

    assert (client.get("/inbox/").status_code == 302) is must_have_one


def test_an_optional_second_factor_is_asked_for_once_it_is_set_up(root: User) -> None:
    client = sign_in(root)
    assert client.get("/admin/").status_code == 200

    set_up(client)

    assert client.get("/admin/").status_code == 200
    assert sign_in(root).get("/admin/").status_code == 302


@pytest.mark.parametrize("admin_of", ["staff", "a tenant"])
def test_new_admin_rights_require_a_second_factor_in_open_sessions(
    admin_of: str, tenant: Tenant, settings: Any
) -> None:
    user = member(tenant, "viewer")
    session = sign_in(user)
    settings.ORCHESTRATOR_SECOND_FACTOR = "required"
    assert session.get("/inbox/").status_code == 200

    if admin_of == "staff":
        User.objects.filter(pk=user.pk).update(is_staff=True)
    else:
        with system_scope():
            Membership.objects.filter(user_id=user.pk).update(role="admin")

    assert session.get("/inbox/").status_code == 302
    assert session.get("/admin/").status_code == 302


def test_the_secret_is_encrypted_for_its_owner_alone(root: User) -> None:
    secret, codes = set_up(sign_in(root))
    factor = SecondFactor.objects.get(pk=root.pk)
    other = User.objects.create_user("other", password=PASSWORD)
    SecondFactor.objects.create(user=other, secret_sealed=factor.secret_sealed, confirmed_at=clock.now())

    assert base64.b32encode(secret).decode() not in factor.secret_sealed
    assert codes[0] not in factor.secret_sealed
    with pytest.raises(Exception, match="encrypted for another row"):
        second_factor.verify(other, code(secret, later=1))


def test_a_second_factor_whose_key_was_removed_is_explained_and_not_skipped(
    required: None, root: User, settings: Any
) -> None:
    secret, codes = set_up(sign_in(root))
    keys, client = settings.FIELD_ENCRYPTION_KEYS, sign_in(root)
    settings.FIELD_ENCRYPTION_KEYS = ["other:" + "0" * 64]

    page = client.get(PAGE)
    tried = [client.post(PAGE, {"code": each}) for each in (code(secret, later=1), codes[0])]

    for answer in (page, *tried):
        assert "the server does not have the key" in answer.content.decode()
    assert [answer.status_code for answer in (page, *tried)] == [200, 400, 400]
    assert client.post(PAGE, {"begin": "1"}).status_code == 400
    assert client.get("/admin/").status_code == 302

    settings.FIELD_ENCRYPTION_KEYS = keys
    assert client.post(PAGE, {"code": code(secret, later=1)}).status_code == 302
    assert client.get("/admin/").status_code == 200


def test_the_page_redirects_only_within_the_site(required: None, root: User) -> None:
    secret, _ = set_up(sign_in(root))

    answer = sign_in(root).post(PAGE, {"code": code(secret, later=1), "next": "https://evil.example/"})

    assert answer["Location"] == "/"


def test_the_command_and_a_superuser_can_reset_a_lost_second_factor(required: None, root: User) -> None:
    set_up(sign_in(root))
    assert "Your code" in sign_in(root).get(PAGE).content.decode()

    call_command("reset_second_factor", "root")

    client = sign_in(root)
    assert "Set it up" in client.get(PAGE).content.decode()
    assert client.get("/admin/").status_code == 302, "it is still required"
    with pytest.raises(CommandError):
        call_command("reset_second_factor", "root")

    set_up(client)
    page = client.get(f"/admin/tenants/secondfactor/{root.pk}/change/")
    assert page.status_code == 200
    assert SecondFactor.objects.get(pk=root.pk).secret_sealed not in page.content.decode()
    done = client.post(
        "/admin/tenants/secondfactor/",
        {"action": "reset_selected", "_selected_action": [root.pk], "confirmed": "1"},
    )
    assert done.status_code == 302
    assert not SecondFactor.objects.exists()


def test_a_thief_with_the_password_cannot_see_the_secret_that_the_owner_sets_up(
    required: None, root: User
) -> None:
    thief, owner = sign_in(root), sign_in(root)
    thief.post(PAGE, {"begin": "1"})
    page_of_thief = thief.get(PAGE).content.decode()

    secret, _ = set_up(owner)

    assert base64.b32encode(secret).decode()[:4] not in page_of_thief
    assert "<code>" not in thief.get(PAGE).content.decode()
    assert thief.get("/admin/").status_code == 302


def test_a_secret_that_a_thief_began_to_set_up_is_void_once_the_owner_has_one(
    required: None, root: User
) -> None:
    thief, owner = sign_in(root), sign_in(root)
    thief.post(PAGE, {"begin": "1"})
    page = thief.get(PAGE).content.decode()
    theirs = base64.b32decode(re.search(r"<code>([A-Z2-7 ]+)</code>", page)[1].replace(" ", ""))  # type: ignore[index]
    set_up(owner)

    assert thief.post(PAGE, {"code": code(theirs)}).status_code == 400
    assert thief.post(PAGE, {"begin": "1"}).status_code == 400
    assert thief.get("/admin/").status_code == 302
