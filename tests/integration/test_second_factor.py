"""People with admin rights prove a second thing at the login, where that is required; others if they want to."""

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


def signed_in(user: User, door: str = "/login/") -> Client:
    client = Client()
    assert client.post(door, {"username": user.username, "password": PASSWORD}).status_code == 302
    return client


def code(secret: bytes, later: int = 0) -> str:
    return second_factor.code_at(secret, int(clock.now().timestamp()) // 30 + later)


def set_up(client: Client) -> tuple[bytes, list[str]]:
    """The secret, and the recovery codes as the page shows them."""
    assert client.post(PAGE, {"begin": "1"}).status_code == 302
    shown = client.get(PAGE).content.decode()
    secret = base64.b32decode(re.search(r"<code>([A-Z2-7 ]+)</code>", shown)[1].replace(" ", ""))  # type: ignore[index]
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


@pytest.mark.parametrize("door", ["/login/", "/admin/login/"])
def test_until_the_code_was_right_the_session_of_an_admin_opens_nothing(
    door: str, required: None, root: User
) -> None:
    client = signed_in(root, door)

    for address in ("/", "/inbox/", "/admin/", "/admin/auth/user/", "/tenants/"):
        assert client.get(address).status_code == 302, address
        assert "/login/" in client.get(address)["Location"]
    assert client.get("/api/v1/activities/").status_code == 401
    assert client.get("/live/").status_code in (401, 403)
    assert client.post("/admin/break-glass/", {"reason": "because"}).status_code == 302
    led = client.get(f"{door}?next=/admin/auth/user/")
    assert led["Location"] == f"{PAGE}?next=%2Fadmin%2Fauth%2Fuser%2F"

    set_up(client)

    assert client.get("/admin/auth/user/").status_code == 200


def test_who_has_one_is_asked_at_each_sign_in_and_a_code_opens_once(required: None, root: User) -> None:
    secret, _ = set_up(signed_in(root))
    client, other = signed_in(root), signed_in(root)
    session = client.cookies["sessionid"].value

    used = client.post(PAGE, {"code": code(secret)})  # the one of the set-up
    assert used.status_code == 400
    right = client.post(PAGE, {"code": code(secret, later=1), "next": "/admin/auth/user/"})
    again = other.post(PAGE, {"code": code(secret, later=1)})

    assert (right.status_code, right["Location"]) == (302, "/admin/auth/user/")
    assert client.cookies["sessionid"].value != session
    assert client.get("/admin/auth/user/").status_code == 200
    assert again.status_code == 400
    assert other.get("/admin/auth/user/").status_code == 302


@pytest.mark.parametrize("later", [-1, 0, 1])
def test_a_phone_may_be_wrong_by_half_a_minute_and_by_no_more(
    later: int, root: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, _ = set_up(signed_in(root))
    SecondFactor.objects.update(last_step=-1)
    clock_at_first = clock.now()
    monkeypatch.setattr(clock, "now", lambda: clock_at_first)

    assert signed_in(root).post(PAGE, {"code": code(secret, later=2)}).status_code == 400
    assert signed_in(root).post(PAGE, {"code": code(secret, later=-2)}).status_code == 400
    assert signed_in(root).post(PAGE, {"code": code(secret, later=later)}).status_code == 302


def test_a_code_that_comes_twice_at_once_opens_once(database: None, root: User) -> None:
    secret, _ = set_up(signed_in(root))
    barrier = Barrier(4)

    def tried(_: int) -> bool:
        barrier.wait()
        try:
            return second_factor.verify(root, code(secret, later=1))[0]
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(tried, range(4))) == [False, False, False, True]


def test_a_recovery_code_opens_once_and_new_ones_end_the_old_ones(required: None, root: User) -> None:
    first = signed_in(root)
    secret, codes = set_up(first)

    assert signed_in(root).post(PAGE, {"code": codes[0].lower()}).status_code == 302
    assert signed_in(root).post(PAGE, {"code": codes[0]}).status_code == 400
    renewed = first.post(PAGE, {"code": code(secret, later=1), "renew": "1"})

    assert "Save these recovery codes" in renewed.content.decode()
    assert signed_in(root).post(PAGE, {"code": codes[1]}).status_code == 400


def test_wrong_codes_count_like_wrong_passwords(required: None, root: User) -> None:
    secret, _ = set_up(signed_in(root))
    client = signed_in(root)

    statuses = [client.post(PAGE, {"code": f"{number:06}"}).status_code for number in range(6)]

    assert statuses == [400] * 5 + [429]
    assert client.post(PAGE, {"code": code(secret, later=1)}).status_code == 429
    with system_scope():
        found = set(AuditEntry.objects.filter(tenant=None).values_list("operation", flat=True))
    assert {"second_factor.set_up", "second_factor.failed", "second_factor.locked"} <= found


@pytest.mark.parametrize(("role", "asked"), [("admin", True), ("operator", False), ("viewer", False)])
def test_admins_of_a_tenant_must_have_one_and_others_need_not(
    role: str, asked: bool, required: None, tenant: Tenant
) -> None:
    client = signed_in(member(tenant, role))

    assert (client.get("/inbox/").status_code == 302) is asked


def test_where_it_is_optional_only_those_are_asked_who_have_set_it_up(root: User) -> None:
    client = signed_in(root)
    assert client.get("/admin/").status_code == 200

    set_up(client)

    assert client.get("/admin/").status_code == 200
    assert signed_in(root).get("/admin/").status_code == 302


@pytest.mark.parametrize("of", ["staff", "a tenant"])
def test_rights_and_sessions_from_before_are_asked_as_well(of: str, tenant: Tenant, settings: Any) -> None:
    user = member(tenant, "viewer")
    before = signed_in(user)
    settings.ORCHESTRATOR_SECOND_FACTOR = "required"
    assert before.get("/inbox/").status_code == 200

    if of == "staff":
        User.objects.filter(pk=user.pk).update(is_staff=True)
    else:
        with system_scope():
            Membership.objects.filter(user_id=user.pk).update(role="admin")

    assert before.get("/inbox/").status_code == 302
    assert before.get("/admin/").status_code == 302


def test_the_secret_is_sealed_and_only_read_by_its_owner(root: User) -> None:
    secret, codes = set_up(signed_in(root))
    factor = SecondFactor.objects.get(pk=root.pk)
    other = User.objects.create_user("other", password=PASSWORD)
    SecondFactor.objects.create(user=other, secret_sealed=factor.secret_sealed, confirmed_at=clock.now())

    assert base64.b32encode(secret).decode() not in factor.secret_sealed
    assert codes[0] not in factor.secret_sealed
    with pytest.raises(Exception, match="encrypted for another row"):
        second_factor.verify(other, code(secret, later=1))


def test_the_page_leads_nowhere_else(required: None, root: User) -> None:
    secret, _ = set_up(signed_in(root))

    answer = signed_in(root).post(PAGE, {"code": code(secret, later=1), "next": "https://evil.example/"})

    assert answer["Location"] == "/"


def test_who_lost_everything_is_helped_by_the_command_and_by_a_superuser(required: None, root: User) -> None:
    set_up(signed_in(root))
    assert "Your code" in signed_in(root).get(PAGE).content.decode()

    call_command("reset_second_factor", "root")

    helped = signed_in(root)
    assert "Set it up" in helped.get(PAGE).content.decode()
    assert helped.get("/admin/").status_code == 302, "it is still required"
    with pytest.raises(CommandError):
        call_command("reset_second_factor", "root")

    set_up(helped)
    page = helped.get(f"/admin/tenants/secondfactor/{root.pk}/change/")
    assert page.status_code == 200
    assert SecondFactor.objects.get(pk=root.pk).secret_sealed not in page.content.decode()
    done = helped.post(
        "/admin/tenants/secondfactor/",
        {"action": "reset_selected", "_selected_action": [root.pk], "confirmed": "1"},
    )
    assert done.status_code == 302
    assert not SecondFactor.objects.exists()


def test_a_password_alone_learns_nothing_of_the_secret_that_its_owner_sets_up(
    required: None, root: User
) -> None:
    thief, owner = signed_in(root), signed_in(root)
    thief.post(PAGE, {"begin": "1"})
    seen = thief.get(PAGE).content.decode()

    secret, _ = set_up(owner)

    assert base64.b32encode(secret).decode()[:4] not in seen
    assert "<code>" not in thief.get(PAGE).content.decode()
    assert thief.get("/admin/").status_code == 302


def test_a_secret_that_somebody_else_was_setting_up_opens_nothing_once_there_is_one(
    required: None, root: User
) -> None:
    thief, owner = signed_in(root), signed_in(root)
    thief.post(PAGE, {"begin": "1"})
    shown = thief.get(PAGE).content.decode()
    theirs = base64.b32decode(re.search(r"<code>([A-Z2-7 ]+)</code>", shown)[1].replace(" ", ""))  # type: ignore[index]
    set_up(owner)

    assert thief.post(PAGE, {"code": code(theirs)}).status_code == 400
    assert thief.post(PAGE, {"begin": "1"}).status_code == 400
    assert thief.get("/admin/").status_code == 302
