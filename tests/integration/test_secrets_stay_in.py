"""Secrets that were saved over the API appear nowhere else, and their encryption keys can be rotated."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client
from pytest_httpserver import HTTPServer
from werkzeug import Response

from activities import outputs
from activities.management.commands import rotate_credentials
from activities.models import NotificationChannel
from agents import configuration, credentials, outbound
from agents.models import Agent, AgentConfig
from tenants.context import SYSTEM, system_scope, tenant_scope
from tenants.models import Tenant
from tenants.redis import client as redis_client
from tests.browsing import list_url, page_url
from tests.engine import Engine
from tests.superusers import create_superuser

CANARY = "kanarienvogel-7f3a"
HOOK = f"https://example.com/hooks/{CANARY}-hook"
CONFIG = "/api/v1/agent-configs/qa/"


@pytest.fixture(autouse=True)
def closed_connections() -> Iterator[None]:
    yield
    outbound.close_connections()


@pytest.fixture
def rotate_keys(settings: Any) -> Any:
    """Starts with an old key; `rotate_keys()` adds a new one in front."""
    settings.FIELD_ENCRYPTION_KEYS = ["old:" + "1" * 64]

    def rotate(*, keep_old: bool = True) -> None:
        settings.FIELD_ENCRYPTION_KEYS = ["new:" + "2" * 64, *(["old:" + "1" * 64] if keep_old else [])]

    return rotate


def tables() -> str:
    """All rows of all tables, as text."""
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        names = [name for (name,) in cursor.fetchall()]
        assert len(names) > 40
        texts = []
        for name in names:
            cursor.execute(f'SELECT t::text FROM "{name}" t')  # a name from the catalogue
            texts += [row for (row,) in cursor.fetchall()]
    return "\n".join(texts)


def keys_and_values() -> str:
    """Everything in Redis, whatever its type."""
    redis = redis_client()
    return "\n".join(repr((key, redis.dump(key), _plain(redis, key))) for key in redis.scan_iter(count=1000))


def _plain(redis: Any, key: Any) -> Any:
    """`dump` may compress long texts, so they are read as well."""
    read = {
        "string": redis.get, "hash": redis.hgetall, "set": redis.smembers, "list": lambda k: redis.lrange(k, 0, -1),
        "zset": lambda k: redis.zrange(k, 0, -1), "stream": redis.xrange,
        "none": lambda k: None,  # it has just expired
    }  # fmt: skip
    kind = redis.type(key)
    return read[kind.decode() if isinstance(kind, bytes) else kind](key)


def documents() -> str:
    database = outputs.collection().database
    return "\n".join(repr(list(database[name].find())) for name in database.list_collection_names())


def log_text(caplog: Any, capfd: Any) -> str:
    records = "\n".join(repr(record.__dict__) for record in caplog.records)
    return records + "".join(capfd.readouterr())


@pytest.fixture
def pages(api: Any, tenant: Tenant) -> Any:
    """`pages()`: the text of the pages and answers about the objects that have secrets."""

    def read() -> str:
        root = Client(raise_request_exception=False)
        root.force_login(create_superuser())
        with system_scope():
            config = AgentConfig.objects.get(tenant=tenant, agent_id="qa")
            channel = NotificationChannel.objects.get(tenant=tenant)
        addresses = [
            list_url(AgentConfig),
            page_url(config),
            list_url(NotificationChannel),
            page_url(channel),
            "/admin/",
        ]
        addresses += [f"{page_url(row).removesuffix('change/')}history/" for row in (config, channel)]
        client = api()
        answers = [root.get(address) for address in addresses]
        answers += [
            client.get(address)
            for address in (
                CONFIG, "/api/v1/agent-configs/", "/api/v1/agents/qa/", "/api/v1/notification-channels/", "/api/v1/activities/",
                "/api/v1/schema/", "/api/v1/alerts/", "/api/v1/dead-letters/", "/metrics",
            )
        ]  # fmt: skip
        assert {answer.status_code for answer in answers} == {200}
        return "\n".join(answer.content.decode() for answer in answers)

    return read


def test_only_the_agent_receives_its_secret(
    api: Any, engine: Engine, tenant: Tenant, httpserver: HTTPServer, settings: Any, pages: Any, caplog: Any, capfd: Any
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"{httpserver.host}:{httpserver.port}", "example.com:443")
    received: list[str] = []

    def refuse(request: Any) -> Response:
        received.append(request.headers["Authorization"])
        return Response('{"detail": "no"}', 400)

    httpserver.expect_request("/agent").respond_with_handler(refuse)
    client = api()
    body = {
        "adapter": "http",
        "endpoint": httpserver.url_for("/agent"),
        "auth": {"type": "bearer", "token": CANARY},
    }
    assert client.put(CONFIG, body, format="json").status_code == 200
    hook = {"kind": "slack", "name": "Ops", "target": HOOK}
    assert client.post("/api/v1/notification-channels/", hook, format="json").status_code == 201
    configuration.forget()
    engine.serve(tenant, "dev")
    (activity_id,), (other,) = engine.submit(tenant), engine.submit(tenant, "dev")
    engine.drain()
    outputs.copy_waiting()

    wrong = [
        client.put(CONFIG, {**body, "auth": {"type": "bearer", "tokn": CANARY}}, format="json"),
        client.put(CONFIG, {**body, "auth": {"type": "bearer", "token": f"{CANARY}\n"}}, format="json"),
        client.put(CONFIG, {**body, "auth": CANARY}, format="json"),
        client.put(CONFIG, {**body, "timeout_seconds": "x"}, format="json"),
    ]
    assert {answer.status_code for answer in wrong} == {400}
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(credentials, "seal", _breaks)
        client.raise_request_exception = False
        answer = client.put(CONFIG, body, format="json")
        assert answer.status_code == 500
        wrong.append(answer)

    assert received == [f"Bearer {CANARY}"], "the agent receives it"
    assert engine.status(tenant, activity_id) == "failed"
    places = {
        "PostgreSQL": tables(),
        "Redis": keys_and_values(),
        "MongoDB": documents(),
        "answers": "\n".join(answer.content.decode() for answer in wrong),
        "pages": pages(),
        "logs": log_text(caplog, capfd),
    }
    assert {name for name, text in places.items() if CANARY in text} == set()
    expected = {
        "PostgreSQL": activity_id,
        "Redis": tenant.pk,
        "MongoDB": other,
        "pages": activity_id,
        "logs": "request_failed",
    }
    assert [name for name, sign in expected.items() if str(sign) not in places[name]] == [], (
        "these places were searched"
    )


def _breaks(secrets: Any, *, context: str) -> str:
    raise RuntimeError("something is wrong in here")


def store_three_secrets(api: Any, tenant: Tenant) -> None:
    with system_scope():
        sealed = credentials.seal({"type": "bearer", "token": "a"}, context=credentials.agent_context("dev"))
        Agent.objects.filter(role="dev").update(auth_sealed=sealed)
    client = api()
    assert client.put(CONFIG, {"auth": {"type": "bearer", "token": "b"}}, format="json").status_code == 200
    mail = {"kind": "email", "name": "Ops", "target": "ops@example.com"}
    assert client.post("/api/v1/notification-channels/", mail, format="json").status_code == 201


@pytest.fixture
def dev_agent(database: None) -> Iterator[None]:
    """The role of the registry, put back as migrations made it."""
    yield
    with system_scope():
        Agent.objects.filter(role="dev").update(auth_sealed="")


def rotate_credentials_output(**options: Any) -> str:
    output = StringIO()
    call_command("rotate_credentials", stdout=output, **options)
    return output.getvalue()


def sealed_with(tenant: Tenant) -> list[str]:
    with system_scope():
        rows = [
            Agent.objects.get(role="dev").auth_sealed,
            AgentConfig.objects.get(tenant=tenant).auth_sealed,
            NotificationChannel.objects.get(tenant=tenant).target_sealed,
        ]
    return [row.partition(":")[0] for row in rows]


@pytest.mark.usefixtures("dev_agent")
def test_rotation_encrypts_every_secret_with_the_newest_key_once(
    api: Any, tenant: Tenant, rotate_keys: Any
) -> None:
    store_three_secrets(api, tenant)
    rotate_keys()

    dry = rotate_credentials_output(dry_run=True)
    assert dry.count("1 would be encrypted again") == 3
    assert sealed_with(tenant) == ["old"] * 3
    assert rotate_credentials_output().count("1 encrypted again") == 3
    assert sealed_with(tenant) == ["new"] * 3
    assert rotate_credentials_output().count("0 encrypted again, 1 with the newest key already") == 3

    rotate_keys(keep_old=False)
    configuration.forget()
    assert configuration.settings_for(tenant.pk, "qa").adapter.auth == {"type": "bearer", "token": "b"}


@pytest.mark.usefixtures("dev_agent")
def test_rotation_names_the_rows_that_it_cannot_decrypt_and_continues(
    api: Any, tenant: Tenant, rotate_keys: Any
) -> None:
    store_three_secrets(api, tenant)
    with tenant_scope(tenant.pk):
        foreign = credentials.seal({"token": "x"}, context="another row")
        AgentConfig.objects.filter(agent_id="qa").update(auth_sealed=foreign)
        config = AgentConfig.objects.get(agent_id="qa")
    rotate_keys()

    with pytest.raises(CommandError, match=f"credentials of tenants' agents: {config.pk}"):
        rotate_credentials_output()

    assert sealed_with(tenant) == ["new", "old", "new"]


@pytest.mark.usefixtures("dev_agent")
def test_rotation_does_not_overwrite_a_secret_that_was_replaced_meanwhile(
    api: Any, tenant: Tenant, rotate_keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_three_secrets(api, tenant)
    rotate_keys()
    reseal = credentials.reseal

    def replace_meanwhile(text: str, *, context: str) -> str:
        if context.startswith("agent_config"):
            api().put(CONFIG, {"auth": {"type": "bearer", "token": "newer"}}, format="json")
        return reseal(text, context=context)

    monkeypatch.setattr(credentials, "reseal", replace_meanwhile)
    rotate_credentials_output()

    configuration.forget()
    assert configuration.settings_for(tenant.pk, "qa").adapter.auth["token"] == "newer"


def test_rotation_covers_every_encrypted_column() -> None:
    from django.apps import apps

    sealed = {
        (model, field.name)
        for model in apps.get_models()
        for field in model._meta.concrete_fields
        if field.name.endswith("_sealed")
    }

    assert {(place.rows().model, place.column) for place in rotate_credentials.PLACES} == sealed


def test_a_secret_encrypted_for_one_row_cannot_be_decrypted_for_another(
    tenant: Tenant, other_tenant: Tenant
) -> None:
    ours = credentials.config_context(tenant.pk, "qa")
    text = credentials.seal({"token": "t"}, context=ours)

    assert credentials.unseal(text, context=ours) == {"token": "t"}
    for elsewhere in (
        credentials.config_context(other_tenant.pk, "qa"),
        credentials.config_context(tenant.pk, "dev"),
    ):
        with pytest.raises(credentials.ConfigurationError):
            credentials.unseal(text, context=elsewhere)
    assert text != credentials.seal({"token": "t"}, context=ours), "a new nonce each time"
    with pytest.raises(credentials.ConfigurationError):
        credentials.unseal(f"test:{os.urandom(4).hex()}", context=ours)
