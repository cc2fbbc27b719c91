"""Repeated wrong passwords and tokens are refused for a time, whether or not the account exists."""

from __future__ import annotations

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
from tests import redis_clock

PASSWORD = "a long enough password"
LOGINS = ("/login/", "/admin/login/")


@pytest.fixture(autouse=True)
def no_time_passes(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    redis_clock.stop_limiter(monkeypatch)


@pytest.fixture
def ann(database: None) -> User:
    return User.objects.create_user("ann", password=PASSWORD, is_staff=True)


def attempt(
    login: str = "/login/", name: str = "ann", password: str = "wrong", address: str = "198.51.100.7"
) -> Any:
    return Client().post(login, {"username": name, "password": password}, REMOTE_ADDR=address)


@pytest.mark.parametrize("login", LOGINS)
def test_after_five_failures_the_account_is_locked_for_that_address(login: str, ann: User) -> None:
    for _ in range(5):
        assert attempt(login).status_code == 200

    refused = attempt(login, password=PASSWORD)

    assert refused.status_code == 429
    assert 0 < int(refused["Retry-After"]) <= 180
    assert "sessionid" not in refused.cookies
    assert attempt(LOGINS[0], password=PASSWORD).status_code == 429, "both logins share their count"
    assert attempt(login, name="ANN ", password=PASSWORD).status_code == 429
    assert attempt(login, password=PASSWORD, address="203.0.113.1").status_code == 302, (
        "other addresses are not affected"
    )


def test_guesses_from_many_addresses_slow_down_unknown_browsers_only(ann: User) -> None:
    known = Client()
    assert known.post("/login/", {"username": "ann", "password": PASSWORD}).status_code == 302
    known.post("/logout/")
    statuses = [attempt(address=f"198.51.{number}.7").status_code for number in range(51)]

    stranger = attempt(password=PASSWORD, address="203.0.113.1")
    copied = Client()
    copied.cookies["orchestrator_device"] = "x" + known.cookies["orchestrator_device"].value
    forged = copied.post("/login/", {"username": "ann", "password": PASSWORD}, REMOTE_ADDR="203.0.113.2")
    known_again = known.post("/login/", {"username": "ann", "password": PASSWORD}, REMOTE_ADDR="198.51.7.7")

    assert statuses == [200] * 50 + [429]
    assert stranger.status_code == forged.status_code == 429
    assert 0 < int(stranger["Retry-After"]) <= 10, "a short wait instead of a lock"
    assert "seconds" in stranger.content.decode()
    assert known_again.status_code == 302


def test_a_known_browser_has_five_guesses_and_is_bound_to_account_and_password(
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


def test_a_browser_is_forgotten_after_some_time(ann: User, settings: Any) -> None:
    known = Client()
    known.post("/login/", {"username": "ann", "password": PASSWORD})
    request = HttpRequest()
    request.COOKIES["orchestrator_device"] = known.cookies["orchestrator_device"].value
    assert login_throttle.find_device(request, "ann")

    settings.ORCHESTRATOR_LOGIN_DEVICE_SECONDS = -1  # any age is above this

    assert not login_throttle.find_device(request, "ann")


def test_addresses_of_one_ipv6_network_count_together(ann: User) -> None:
    statuses = [attempt(address=f"2001:db8:1:2::{number}").status_code for number in range(1, 7)]

    assert statuses == [200] * 5 + [429]
    assert attempt(password=PASSWORD, address="2001:db8:1:3::1").status_code == 302


def test_a_success_resets_the_count_of_the_account(ann: User) -> None:
    for _ in range(4):
        attempt()
    assert attempt(password=PASSWORD).status_code == 302

    for _ in range(4):
        assert attempt().status_code == 200
    assert attempt(password=PASSWORD).status_code == 302


def test_after_thirty_failures_an_address_is_locked_for_all_accounts(ann: User) -> None:
    for number in range(30):
        assert attempt(name=f"user {number}").status_code == 200

    assert attempt(password=PASSWORD).status_code == 429
    assert attempt(password=PASSWORD, address="203.0.113.1").status_code == 302


def test_successes_do_not_count_against_an_address(ann: User, settings: Any) -> None:
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS = 2

    assert [attempt(password=PASSWORD).status_code for _ in range(5)] == [302] * 5


def test_an_unknown_name_gets_the_same_answer_after_the_same_work(
    ann: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.PBKDF2PasswordHasher"]
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = 1
    ann.set_password(PASSWORD)
    ann.save()
    encode, rounds = PBKDF2PasswordHasher.encode, list[int]()

    def count(self: Any, password: str, salt: str, iterations: int | None = None) -> str:
        rounds.append(iterations or self.iterations)
        return str(encode(self, password, salt, iterations))

    monkeypatch.setattr(PBKDF2PasswordHasher, "encode", count)
    answers = {}
    for name in ("ann", "bob"):
        rounds.clear()
        text = attempt(name=name).content.decode().replace(name, "NAME")
        answers[name] = (text.split("csrfmiddlewaretoken")[1][100:], list(rounds))

    assert answers["ann"] == answers["bob"]
    assert len(answers["ann"][1]) == 1
    assert [attempt(name=name).status_code for name in ("ann", "bob")] == [429, 429]


def test_concurrent_attempts_count_before_they_have_failed(database: None) -> None:
    allowed = [login_throttle.sign_in_attempt("198.51.100.7", "ann").allowed for _ in range(20)]

    assert allowed.count(True) == 5


def test_every_attempt_is_in_the_audit_trail(ann: User) -> None:
    attempt(name="eve\r\nroot signed in")
    attempt(password=PASSWORD)
    for _ in range(6):
        attempt()

    with system_scope():
        entries = list(AuditEntry.objects.filter(tenant=None).order_by("number"))
    assert [(entry.operation, entry.outcome) for entry in entries[:2]] == [
        ("login.failed", "failed"),
        ("login.succeeded", "done"),
    ]
    assert entries[0].actor_name == "eve\\u000d\\u000aroot signed in"
    assert (entries[1].actor_kind, entries[1].actor_name, entries[1].ip) == ("user", "ann", "198.51.100.7")
    assert entries[-1].operation == "login.locked"


def test_without_redis_each_process_counts_by_itself(ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise LimiterUnavailable("away")

    limiter.breaker.reset()
    monkeypatch.setattr(Bucket, "take", fail)
    monkeypatch.setattr(limiter, "_buckets", type(limiter._buckets)())
    try:
        statuses = [attempt().status_code for _ in range(7)]
    finally:
        limiter.breaker.reset()

    assert statuses == [200] * 5 + [429] * 2


def _call(secret: str, address: str = "198.51.100.7") -> Any:
    return APIClient().get("/api/v1/activities/", HTTP_AUTHORIZATION=f"Bearer {secret}", REMOTE_ADDR=address)


def test_repeated_invalid_tokens_are_refused_with_429_and_valid_ones_still_work(tenant: Tenant) -> None:
    _, good = tokens.create(tenant, "viewer", "ci")
    statuses = [_call(f"orc_{number:043}").status_code for number in range(32)]

    assert statuses == [401] * 5 + [429] * 27 or statuses == [401] * 30 + [429] * 2
    refused = _call("orc_" + "z" * 43)
    assert refused.status_code == 429
    assert refused.json()["code"] == "too_many_failures"
    assert int(refused["Retry-After"]) > 0
    assert _call(good).status_code == 200
    assert _call("orc_" + "y" * 43, address="203.0.113.1").status_code == 401


def test_guesses_with_the_same_token_prefix_count_over_all_addresses(database: None) -> None:
    statuses = [
        _call("orc_12345678" + f"{number:035}", f"198.51.100.{number}").status_code for number in range(7)
    ]

    assert statuses == [401] * 5 + [429] * 2
