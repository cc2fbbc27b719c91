"""Jobs are signed with the secrets of their tenant and role, which admins renew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from agents import credentials, outbound
from agents.models import AgentConfig
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.signatures.secrets_in_force import CONFIGS, secrets_of
from tests.receivers import HttpReceiver, http_receiver

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")
SECRETS_MEMBERS = {"role", "secret", "in_force", "version"}


@pytest.fixture
def receiver(settings: Any) -> Iterator[HttpReceiver]:
    with http_receiver() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (running.place,)
        running.answer_with((202, {}, b""))
        yield running
    outbound.close_connections()


def test_a_job_has_a_signature_that_the_public_library_accepts(
    engine: Engine, tenant: Tenant, receiver: HttpReceiver
) -> None:
    engine.serve(tenant, adapter="http", endpoint=receiver.url)
    engine.submit(tenant)
    engine.drain()
    (job,) = receiver.posted

    Webhook(secrets_of(tenant)[0]).verify(job.body, job.headers)

    assert job.headers["webhook-id"] == job.json["execution_id"]
    for body, headers in (
        (job.body + b" ", job.headers),
        (job.body, {**job.headers, "webhook-id": "another"}),
        (job.body, {**job.headers, "webhook-timestamp": str(int(time.time()) + 1)}),
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(secrets_of(tenant)[0]).verify(body, headers)


def test_tenants_and_roles_share_no_secret(engine: Engine, acme: Tenant, other_tenant: Tenant) -> None:
    all_secrets = [secrets_of(tenant, role) for tenant in (acme, other_tenant) for role in ("qa", "dev")]

    assert len({secret for secrets in all_secrets for secret in secrets}) == sum(map(len, all_secrets)) == 4


def test_the_two_newest_secrets_sign(
    api: Any, engine: Engine, tenant: Tenant, receiver: HttpReceiver
) -> None:
    engine.serve(tenant, adapter="http", endpoint=receiver.url)
    secrets = [secrets_of(tenant)[0]]
    for _ in range(2):
        answer = api().post(f"{CONFIGS}qa/rotate-secret/")
        assert (answer.status_code, answer.json().keys(), answer.json()["in_force"]) == (
            200,
            SECRETS_MEMBERS,
            2,
        )
        secrets.append(answer.json()["secret"])
        engine.submit(tenant)
        engine.drain()

    first, second = receiver.posted

    def is_valid(secret: str, posted: Any) -> bool:
        try:
            Webhook(secret).verify(posted.body, posted.headers)
        except WebhookVerificationError:
            return False
        return True

    assert [is_valid(secret, first) for secret in secrets] == [True, True, False]
    assert [is_valid(secret, second) for secret in secrets] == [False, True, True]


def test_a_secret_is_returned_once_and_stored_sealed(api: Any, acme: Tenant) -> None:
    admin = api()

    first = admin.post(f"{CONFIGS}qa/rotate-secret/", headers={"Idempotency-Key": "k"})
    again = admin.post(f"{CONFIGS}qa/rotate-secret/", headers={"Idempotency-Key": "k"})

    secret = first.json()["secret"]
    assert secret in secrets_of(acme)
    assert again.json() == {**first.json(), "secret": None}
    assert first["ETag"].startswith(f'"{first.json()["version"]}-')
    with tenant_scope(acme.pk):
        config = AgentConfig.objects.get(agent_id="qa")
    assert secret not in repr(config.__dict__)
    assert secret not in admin.get(f"{CONFIGS}qa/").content.decode()


def test_a_renewed_secret_is_kept_by_a_change_of_the_settings(api: Any, tenant: Tenant) -> None:
    admin = api()
    before = admin.put(
        f"{CONFIGS}qa/", {"max_concurrency": 3, "auth": {"type": "bearer", "token": "t"}}
    ).json()

    secret = admin.post(f"{CONFIGS}qa/rotate-secret/").json()["secret"]
    after = admin.get(f"{CONFIGS}qa/").json()
    admin.put(f"{CONFIGS}qa/", {"max_concurrency": 4})

    assert after == {**before, "version": before["version"] + 1}
    assert secrets_of(tenant)[0] == secret


@in_one_test(("role", "status"), [("viewer", 403), ("reviewer", 403), ("operator", 403), ("admin", 200)])
def test_only_admins_renew_secrets(api: Any, acme: Tenant, role: str, status: int) -> None:
    assert api(role).post(f"{CONFIGS}qa/rotate-secret/").status_code == status


def test_a_renewal_affects_its_own_tenant_only(api: Any, acme: Tenant, other_tenant: Tenant) -> None:
    before = secrets_of(acme)

    secret = api(tenant=other_tenant).post(f"{CONFIGS}qa/rotate-secret/").json()["secret"]

    assert secrets_of(acme) == before
    assert secret in secrets_of(other_tenant)
    problem(api().post(f"{CONFIGS}no-such-role/rotate-secret/"), 404, "not_found")
    problem(api().post(f"{CONFIGS}qa/rotate-secret/", {"secret": "mine"}), 400, "validation_failed")
    stale = api().post(f"{CONFIGS}qa/rotate-secret/", headers={"If-Match": '"77"'})
    problem(stale, 412, "precondition_failed")


def test_a_secret_that_cannot_be_decrypted_is_not_replaced_by_a_derived_one(
    api: Any, tenant: Tenant, settings: Any
) -> None:
    """Otherwise a secret that the tenant does not know would be accepted."""
    api().post(f"{CONFIGS}qa/rotate-secret/")
    settings.FIELD_ENCRYPTION_KEYS = ["other:" + "1" * 64]

    with pytest.raises(Exception, match="not in FIELD_ENCRYPTION_KEYS"):
        secrets_of(tenant)
    problem(api().post(f"{CONFIGS}qa/rotate-secret/"), 409, "secret_unreadable")


def test_secrets_are_not_in_pages_or_logs(
    api: Any, engine: Engine, acme: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    from django.contrib.auth.models import User

    secret = api().post(f"{CONFIGS}qa/rotate-secret/").json()["secret"]
    browser = Client()
    browser.force_login(User.objects.create_superuser("root"))
    with tenant_scope(acme.pk):
        config = AgentConfig.objects.get(agent_id="qa")

    page = browser.get(f"/admin/agents/agentconfig/{config.pk}/change/").content.decode()

    assert secret not in page
    assert secret not in "\n".join(repr(record.__dict__) for record in caplog.records)
    assert credentials.newest_key() in config.signing_sealed
