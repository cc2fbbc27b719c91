"""Secrets, prompts and outputs appear in no place where they do not belong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import User
from django.test import Client
from django_celery_results.models import TaskResult

from activities import dead_letters, outputs
from activities.notifications.webhooks import deliver_waiting
from agents.contracts import Completed, Output
from tenants import tokens
from tenants.models import Tenant
from tests.engine import Engine
from tests.failed_work import submit_failing
from tests.integration.test_secrets_stay_in import documents, keys_and_values, log_text, tables
from tests.receivers import HttpReceiver

PASSWORD, PROMPT, OUTPUT = "kanarie-password-51c9", "kanarie-prompt-88d2", "kanarie-output-17ab"
CREDENTIAL, ERROR = "kanarie-credential-70ee", "kanarie-error-2f04"


def sign_in(password: str) -> Client:
    browser = Client()
    browser.post("/login/", {"username": "mia", "password": password})
    browser.post("/admin/login/", {"username": "mia", "password": password})
    return browser


def test_no_canary_is_found_where_it_does_not_belong(
    api: Callable[..., Any], engine: Engine, tenant: Tenant, receiver: HttpReceiver, caplog: Any, capfd: Any
) -> None:
    caplog.set_level(logging.INFO)
    client = api(platform=True)
    _, token = tokens.create(tenant, "operator", "A program")
    User.objects.create_user("mia", password=PASSWORD)
    hook = client.post("/api/v1/webhooks/", {"url": receiver.url, "kinds": ["activity.created"]}).json()
    config = {"adapter": "http", "endpoint": receiver.url, "auth": {"type": "bearer", "token": CREDENTIAL}}
    assert client.put("/api/v1/agent-configs/seo/", config).status_code == 200

    engine.serve(tenant, "qa", "dev")
    engine.agent.behaviour = lambda request: Completed(Output(content=OUTPUT, data={"said": OUTPUT}))
    body = {"name": "Work", "agent_role": "qa", "description": PROMPT, "params": {"brief": PROMPT}}
    assert client.post("/api/v1/activities/", body).status_code == 201
    engine.messages()
    in_messages = keys_and_values()
    engine.drain()
    (broken,) = submit_failing(engine, tenant, "dev", description=PROMPT)
    dead_letters.handle_waiting()
    run_token = engine.agent.calls[-1].callback.token if engine.agent.calls else ""
    deliver_waiting(troubled=False)
    in_spool = tables()
    outputs.copy_waiting()

    sign_in(PASSWORD)
    sign_in(f"{PASSWORD}-mistyped")
    program = api()
    program.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    wrong = [
        program.get("/api/v1/activities/", {"nothing": token}),
        program.post(
            "/api/v1/webhooks/", {"url": f"https://x.example/{hook['secret']}", "kinds": [CREDENTIAL]}
        ),
        client.put("/api/v1/agent-configs/seo/", {**config, "auth": {"type": "bearer", "tokn": CREDENTIAL}}),
        Client().get("/nowhere/", headers={"authorization": f"Bearer {token}"}),
        Client().get("/api/v1/activities/", headers={"authorization": f"Bearer {token}x"}),
    ]
    answers = [
        client.get(address)
        for address in ("/api/v1/webhooks/", "/api/v1/agent-configs/", "/api/v1/audit/", "/api/v1/alerts/", "/metrics")
    ]  # fmt: skip
    assert all(400 <= each.status_code < 500 for each in wrong), [each.status_code for each in wrong]

    secrets = {
        "password": PASSWORD, "token": token, "credential": CREDENTIAL, "secret of the webhook": hook["secret"],
        "its key": hook["secret"].removeprefix("whsec_"),
    } | ({"token of a run": run_token} if run_token else {})  # fmt: skip
    texts = {"prompt": PROMPT, "output": OUTPUT}
    places: dict[str, tuple[str, dict[str, str]]] = {
        "PostgreSQL": (tables() + in_spool, secrets),
        "Redis": (keys_and_values() + in_messages, secrets | texts),
        "MongoDB": (documents(), secrets | {"prompt": PROMPT}),
        "results of Celery": (repr(list(TaskResult.objects.values())), secrets | texts),
        "logs": (log_text(caplog, capfd), secrets | texts),
        "refusals": (
            "\n".join(each.content.decode() for each in wrong[1:]),
            secrets | texts,
        ),
        "answers": ("\n".join(each.content.decode() for each in answers), secrets | texts),
    }
    leaks = [
        (name, what)
        for name, (text, canaries) in places.items()
        for what, canary in canaries.items()
        if canary in text
    ]
    assert leaks == []
    assert OUTPUT in places["MongoDB"][0], "the search finds a canary where it belongs"
    assert PROMPT in places["PostgreSQL"][0]
    assert str(tenant.pk) in places["Redis"][0]
    assert str(broken) in places["PostgreSQL"][0]
