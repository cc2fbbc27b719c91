"""Anyone who guesses passwords or tokens waits; whether what they guess at exists makes no difference."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import Client
from rest_framework.test import APIClient

from tenants import limiter, login_throttle, tokens
from tenants.context import system_scope
from tenants.exceptions import LimiterUnavailable
from tenants.limiter import Bucket
from tenants.models import Tenant
from tenants.models.audit import AuditEntry

PASSWORD = "a long enough password"
DOORS = ("/login/", "/admin/login/")


@pytest.fixture
def ann(database: None) -> User:
    return User.objects.create_user("ann", password=PASSWORD, is_staff=True)


def attempt(
    door: str = "/login/", name: str = "ann", password: str = "wrong", address: str = "198.51.100.7"
) -> Any:
    return Client().post(door, {"username": name, "password": password}, REMOTE_ADDR=address)


@pytest.mark.parametrize("door", DOORS)
def test_after_five_failures_from_an_address_even_the_right_password_has_to_wait_there(
    door: str, ann: User
) -> None:
    for _ in range(5):
        assert attempt(door).status_code == 200

    refused = attempt(door, password=PASSWORD)

    assert refused.status_code == 429
    assert 0 < int(refused["Retry-After"]) <= 180
    assert "sessionid" not in refused.cookies
    assert attempt(DOORS[0], password=PASSWORD).status_code == 429, "the doors share their count"
    assert attempt(door, name="ANN ", password=PASSWORD).status_code == 429
    assert attempt(door, password=PASSWORD, address="203.0.113.1").status_code == 302, (
        "nobody else is kept out"
    )


def test_guesses_from_ever_new_addresses_slow_strangers_down_and_concern_no_known_browser(ann: User) -> None:
    known = Client()
    assert known.post("/login/", {"username": "ann", "password": PASSWORD}).status_code == 302
    known.post("/logout/")
    statuses = [attempt(address=f"198.51.{number}.7").status_code for number in range(51)]

    stranger = attempt(password=PASSWORD, address="203.0.113.1")
    copied = Client()
    copied.cookies["orchestrator_device"] = "x" + known.cookies["orchestrator_device"].value
    forged = copied.post("/login/", {"username": "ann", "password": PASSWORD}, REMOTE_ADDR="203.0.113.2")
    welcome = known.post("/login/", {"username": "ann", "password": PASSWORD}, REMOTE_ADDR="198.51.7.7")

    assert statuses == [200] * 50 + [429]
    assert stranger.status_code == forged.status_code == 429
    assert 0 < int(stranger["Retry-After"]) <= 10, "seconds, and no lock"
    assert "seconds" in stranger.content.decode()
    assert welcome.status_code == 302


def test_a_known_browser_has_few_guesses_of_its_own_and_is_known_to_one_account_with_one_password(
    ann: User,
) -> None:
    known = Client()
    known.post("/login/", {"username": "ann", "password": PASSWORD})
    known.post("/logout/")

    statuses = [known.post("/login/", {"username": "ann", "password": "wrong"}).status_code for _ in range(6)]

    assert statuses == [200] * 5 + [429]
    request = HttpRequest()
    request.COOKIES["orchestrator_device"] = known.cookies["orchestrator_device"].value
    assert login_throttle.find_device(request, "ann")
    User.objects.create(username="bob", password=ann.password)
    assert not login_throttle.find_device(request, "bob")
    ann.set_password("another long password")
    ann.save()
    assert not login_throttle.find_device(request, "ann")


def test_a_browser_that_signed_in_too_long_ago_is_a_stranger(ann: User, settings: Any) -> None:
    known = Client()
    known.post("/login/", {"username": "ann", "password": PASSWORD})
    request = HttpRequest()
    request.COOKIES["orchestrator_device"] = known.cookies["orchestrator_device"].value
    assert login_throttle.find_device(request, "ann")

    settings.ORCHESTRATOR_LOGIN_DEVICE_SECONDS = -1  # whatever its age is, it is older

    assert not login_throttle.find_device(request, "ann")


def test_all_addresses_of_a_network_of_ipv6_are_one(ann: User) -> None:
    statuses = [attempt(address=f"2001:db8:1:2::{number}").status_code for number in range(1, 7)]

    assert statuses == [200] * 5 + [429]
    assert attempt(password=PASSWORD, address="2001:db8:1:3::1").status_code == 302


def test_a_success_forgives_the_account(ann: User) -> None:
    for _ in range(4):
        attempt()
    assert attempt(password=PASSWORD).status_code == 302

    for _ in range(4):
        assert attempt().status_code == 200
    assert attempt(password=PASSWORD).status_code == 302


def test_after_thirty_failures_an_address_has_to_wait_whomever_it_tries(ann: User) -> None:
    for number in range(30):
        assert attempt(name=f"user {number}").status_code == 200

    assert attempt(password=PASSWORD).status_code == 429
    assert attempt(password=PASSWORD, address="203.0.113.1").status_code == 302


def test_successes_do_not_count_against_an_address(ann: User, settings: Any) -> None:
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS = 2

    assert [attempt(password=PASSWORD).status_code for _ in range(5)] == [302] * 5


def test_a_name_that_nobody_has_is_answered_in_the_same_way_and_time(
    ann: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        PBKDF2PasswordHasher, "iterations", 300_000
    )  # far more work than the rest of an answer
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.PBKDF2PasswordHasher"]
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS = (
        1_000
    )
    ann.set_password(PASSWORD)
    ann.save()
    took: dict[str, list[float]] = {"ann": [], "bob": []}
    bodies: dict[str, str] = {}
    for _ in range(5):
        for name in took:
            began = time.process_time()
            answer = attempt(name=name)
            took[name].append(time.process_time() - began)
            bodies[name] = answer.content.decode().replace(name, "NAME").split("csrfmiddlewaretoken")[1][100:]

    assert bodies["ann"] == bodies["bob"]
    assert median(took["bob"]) == pytest.approx(median(took["ann"]), rel=0.25)
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = 1
    for name in took:
        login_throttle.sign_in_attempt("198.51.100.7", name)
        assert attempt(name=name).status_code == 429


def test_attempts_at_the_same_moment_count_before_any_has_failed(database: None) -> None:
    allowed = [login_throttle.sign_in_attempt("198.51.100.7", "ann").allowed for _ in range(20)]

    assert allowed.count(True) == 5


def test_every_attempt_is_on_record(ann: User) -> None:
    attempt(name="eve\r\nroot signed in")
    attempt(password=PASSWORD)
    for _ in range(6):
        attempt()

    with system_scope():
        found = list(AuditEntry.objects.filter(tenant=None).order_by("number"))
    assert [(entry.operation, entry.outcome) for entry in found[:2]] == [
        ("login.failed", "failed"),
        ("login.succeeded", "done"),
    ]
    assert found[0].actor_name == "eve\\u000d\\u000aroot signed in"
    assert (found[1].actor_kind, found[1].actor_name, found[1].ip) == ("user", "ann", "198.51.100.7")
    assert found[-1].operation == "login.locked"


def test_without_redis_each_process_goes_on_counting(ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: Any, **options: Any) -> Any:
        raise LimiterUnavailable("away")

    limiter.breaker.reset()
    monkeypatch.setattr(Bucket, "take", away)
    monkeypatch.setattr(limiter, "_buckets", type(limiter._buckets)())
    try:
        statuses = [attempt().status_code for _ in range(7)]
    finally:
        limiter.breaker.reset()

    assert statuses == [200] * 5 + [429] * 2


def _call(secret: str, address: str = "198.51.100.7") -> Any:
    return APIClient().get("/api/v1/activities/", HTTP_AUTHORIZATION=f"Bearer {secret}", REMOTE_ADDR=address)


def test_tokens_that_open_nothing_are_answered_429_after_a_while_and_good_ones_go_on(tenant: Tenant) -> None:
    _, good = tokens.create(tenant, "viewer", "ci")
    statuses = [_call(f"orc_{number:043}").status_code for number in range(32)]

    assert statuses == [401] * 5 + [429] * 27 or statuses == [401] * 30 + [429] * 2
    refused = _call("orc_" + "z" * 43)
    assert refused.status_code == 429
    assert refused.json()["code"] == "too_many_failures"
    assert int(refused["Retry-After"]) > 0
    assert _call(good).status_code == 200
    assert _call("orc_" + "y" * 43, address="203.0.113.1").status_code == 401


def test_what_begins_like_a_token_is_counted_over_all_addresses(database: None) -> None:
    statuses = [
        _call("orc_12345678" + f"{number:035}", f"198.51.100.{number}").status_code for number in range(7)
    ]

    assert statuses == [401] * 5 + [429] * 2
