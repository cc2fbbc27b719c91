"""Rate limits of a tenant's requests, also while Redis cannot count them."""

from __future__ import annotations

from uuid import UUID

import pytest

from tenants.api import throttling
from tenants.limiter import Breaker
from tests import redis_clock
from tests.answers import problem
from tests.frozen_server import frozen_server, send_limits_to

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.urls("tests.integration.notes_api")]

NOTES = "/api/notes/"


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch, database):
    """Nothing refills, and a breaker that is open stays open."""
    redis_clock.stop_limiter(monkeypatch)
    monkeypatch.setattr(throttling, "breaker", Breaker(seconds=3600.0))


@pytest.fixture
def three_requests(settings):
    """Allow a burst of three, which refills more slowly than any test runs."""
    settings.ORCHESTRATOR_API_RATE, settings.ORCHESTRATOR_API_BURST = 0.01, 3


def test_requests_above_the_burst_are_429_with_the_time_to_come_back(api, three_requests):
    client = api()

    allowed = [client.get(NOTES).status_code for _ in range(3)]
    refused = client.get(NOTES)

    assert allowed == [200, 200, 200]
    problem(refused, 429, "throttled")
    assert 90 <= int(refused["Retry-After"]) <= 100


def test_every_answer_has_the_remaining_number_of_requests(api, three_requests):
    client = api()

    answers = [client.get(NOTES), client.get(f"{NOTES}{UUID(int=0)}/"), client.get(NOTES), client.get(NOTES)]

    assert {limit_part(answer["RateLimit-Policy"], "tenant") for answer in answers} == {"q=3;w=300"}
    assert [remaining(answer) for answer in answers] == ["r=2", "r=1", "r=0", "r=0"]


def test_one_busy_token_does_not_exhaust_the_limit_of_other_tokens(api, tenant, settings):
    settings.ORCHESTRATOR_API_CALLER_RATE, settings.ORCHESTRATOR_API_CALLER_BURST = 0.01, 2
    wild, other = api(), api()

    statuses = [wild.get(NOTES).status_code for _ in range(4)]
    refused = wild.get(NOTES)

    assert statuses == [200, 200, 429, 429]
    problem(refused, 429, "throttled")
    assert int(refused["Retry-After"]) > 0
    assert limit_part(refused["RateLimit"], "caller").startswith("r=0;t=")
    assert other.get(NOTES).status_code == 200
    assert remaining(other.get(NOTES), "caller") == "r=0"


def limit_part(header: str, name: str) -> str:
    """Return the part of the header about one limit."""
    return {each.split(";")[0]: each.partition(";")[2] for each in header.split(", ")}[f'"{name}"']


def remaining(answer, name: str = "tenant") -> str:
    return limit_part(answer["RateLimit"], name).split(";")[0]


def test_all_tokens_of_a_tenant_share_its_limit_and_other_tenants_have_their_own(
    api, tenant, other_tenant, three_requests
):
    for _ in range(3):
        api(tenant=tenant).get(NOTES)

    assert api(tenant=tenant).get(NOTES).status_code == 429
    assert api(tenant=other_tenant).get(NOTES).status_code == 200


def test_requests_are_not_counted_before_authentication(api, three_requests, client):
    for _ in range(5):
        assert client.get(NOTES).status_code == 401
    assert remaining(api().get(NOTES)) == "r=2"


def test_a_frozen_redis_is_asked_once_and_then_skipped(api, monkeypatch):
    client = api()

    with frozen_server() as server:
        send_limits_to(server, monkeypatch)
        monkeypatch.setattr(throttling, "PATIENCE_SECONDS", 0.05)
        statuses = [client.get(NOTES).status_code for _ in range(20)]

    assert statuses == [200] * 20
    assert len(server.accepted) == 1  # the other requests did not wait for it


def test_after_a_while_redis_is_asked_again(api, settings, three_requests, monkeypatch):
    client = api()
    working = settings.REDIS_URL
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert "RateLimit" not in client.get(NOTES)

    settings.REDIS_URL = working
    assert "RateLimit" not in client.get(NOTES)
    throttling.breaker.reset()  # as after five seconds

    assert remaining(client.get(NOTES)) == "r=2"


@pytest.fixture
def one_millisecond_of_work(settings, monkeypatch):
    """Allow one millisecond of work and charge every request. The first may leave a debt."""
    monkeypatch.setattr(throttling, "CHARGED_FROM_MS", 0.0)
    settings.ORCHESTRATOR_API_WORK_MS_RATE, settings.ORCHESTRATOR_API_WORK_MS_BURST = 0.001, 1.0


def test_requests_are_weighted_by_their_computing_time(api, tenant, other_tenant, one_millisecond_of_work):
    client, other_token = api(), api()

    statuses = [client.get(NOTES).status_code for _ in range(4)]
    refused = other_token.get(NOTES)

    assert statuses[0] == 200
    assert statuses[-1] == 429
    problem(refused, 429, "throttled")
    assert int(refused["Retry-After"]) > 0
    assert remaining(refused, "work") == "r=0"
    assert api(tenant=other_tenant).get(NOTES).status_code == 200


def test_a_request_that_fails_is_weighted_too(api, tenant, one_millisecond_of_work):
    client = api()

    statuses = [client.get(f"{NOTES}{UUID(int=0)}/").status_code for _ in range(4)]

    assert statuses[0] == 404
    assert statuses[-1] == 429


def test_small_amounts_of_work_are_accumulated_without_asking_redis(api, tenant, settings, monkeypatch):
    monkeypatch.setattr(throttling, "CHARGED_FROM_MS", 1e9)
    settings.ORCHESTRATOR_API_WORK_MS_RATE, settings.ORCHESTRATOR_API_WORK_MS_BURST = 0.001, 1.0
    client = api()

    assert {client.get(NOTES).status_code for _ in range(5)} == {200}
    assert throttling._work[tenant.pk] > 0
