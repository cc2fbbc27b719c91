"""Signatures of reports are checked, and a report counts once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import orjson
import pytest
import redis
from django.db import OperationalError
from standardwebhooks.webhooks import Webhook

from activities.execution import reports
from agents import configuration
from agents.models import Agent
from tenants import clock
from tenants.models import Tenant
from tests.accepted_work import RESULT, AgentClient, accept_work, count_activities
from tests.answers import problem
from tests.engine import Engine
from tests.integration.signatures.secrets_in_force import CONFIGS, secrets_of

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")


@pytest.fixture
def signatures_required(engine: Engine) -> Iterator[None]:
    """Agents of the role qa must sign their reports."""
    Agent.objects.filter(role="qa").update(options={"signed_callbacks": True})
    configuration.forget()
    yield
    Agent.objects.filter(role="qa").update(options={})
    configuration.forget()


class SigningAgent:
    """An agent that signs with the public library."""

    def __init__(self, agent: AgentClient, secret: str) -> None:
        self.agent, self.secret = agent, secret

    def headers(self, body: bytes, *, message_id: str = "", age: float = 0) -> dict[str, str]:
        message_id = message_id or f"msg_{uuid4().hex}"
        at = datetime.fromtimestamp(time.time() - age, UTC)
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": Webhook(self.secret).sign(message_id, at, body.decode()),
        }

    def post(self, verb: str, body: Any, *, signed: Any = None, **more: Any) -> Any:
        """Post a signed report. `signed` is the body to sign if it differs."""
        extra = more.pop("extra", {})
        raw = orjson.dumps(body)
        headers = self.headers(orjson.dumps(signed) if signed is not None else raw, **more)
        return self.send(verb, raw, {**headers, **extra})

    def send(self, verb: str, raw: bytes, headers: dict[str, str]) -> Any:
        place = f"/{self.agent.address}{verb}/" if verb else f"/{self.agent.address}"
        if not verb:
            return self.agent.client.get(place, headers=headers)
        return self.agent.client.generic("POST", place, raw, "application/json", headers=headers)


def start_signing_agent(engine: Engine, tenant: Tenant) -> SigningAgent:
    _, agent = accept_work(engine, tenant)
    return SigningAgent(agent, secrets_of(tenant)[0])


def test_a_report_signed_with_either_secret_is_accepted(
    api: Any, engine: Engine, acme: Tenant, signatures_required: None
) -> None:
    agent = start_signing_agent(engine, acme)
    old = agent.secret
    new = api().post(f"{CONFIGS}qa/rotate-secret/").json()["secret"]

    for secret in (old, new):
        assert SigningAgent(agent.agent, secret).post("heartbeat", {}).status_code == 200
    api().post(f"{CONFIGS}qa/rotate-secret/")
    problem(SigningAgent(agent.agent, old).post("heartbeat", {}), 401, "invalid_signature")
    assert SigningAgent(agent.agent, new).post("complete", RESULT).json() == {
        "accepted": True,
        "duplicate": False,
    }


def test_where_signatures_are_required_the_token_alone_is_refused(
    engine: Engine, acme: Tenant, signatures_required: None
) -> None:
    agent = start_signing_agent(engine, acme)

    for answer in (
        agent.agent.post("complete", RESULT),
        agent.agent.post("heartbeat", {}),
        agent.agent.post("fail", {"error": {"message": "x"}}),
        agent.agent.use("report_blocker", type="api_outage", message="x"),
        agent.agent.get_job(),
    ):
        problem(answer, 401, "invalid_signature")

    assert engine.status(acme, agent.agent.activity_id) == "in_progress"
    assert agent.send("", b"", agent.headers(b"")).json()["execution_id"] == str(agent.agent.run_id)


@pytest.mark.parametrize("is_required", [True, False], ids=["must sign", "may sign"])
def test_an_invalid_signature_is_401_and_nothing_happens(
    engine: Engine, acme: Tenant, other_tenant: Tenant, request: Any, is_required: bool
) -> None:
    """This holds where the token alone suffices as well: a signature that is present must be valid."""
    if is_required:
        request.getfixturevalue("signatures_required")
    agent = start_signing_agent(engine, acme)
    raw = orjson.dumps(RESULT)
    good = agent.headers(raw)
    signature = good["webhook-signature"]
    others = {
        "another tenant": secrets_of(other_tenant)[0], "another role": secrets_of(acme, "dev")[0],
        "nobody": "whsec_" + "A" * 44,
    }  # fmt: skip
    changed: dict[str, dict[str, str]] = {
        "garbage": {"webhook-signature": "v1,AAAA"}, "empty": {"webhook-signature": ""}, "another id": {"webhook-id": "msg_2"},
        "another time": {"webhook-timestamp": str(int(time.time()) - 7)}, "cut": {"webhook-signature": signature[:-4]},
        "not ascii": {"webhook-signature": "v1,é€"}, "bytes": {"webhook-timestamp": "\x00"},
        "many": {"webhook-signature": "v1,AAAA " * 500},
    }  # fmt: skip
    wrong = {
        "old": agent.headers(raw, age=310), "future": agent.headers(raw, age=-310), "another body": agent.headers(raw + b" "),
        "no signature": {name: value for name, value in good.items() if name != "webhook-signature"},
        **{whose: SigningAgent(agent.agent, secret).headers(raw) for whose, secret in others.items()},
        **{what: {**good, **headers} for what, headers in changed.items()},
    }  # fmt: skip

    for what, headers in wrong.items():
        answer = agent.send("complete", raw, headers)
        assert answer.status_code == 401, (what, answer.content)
        problem(answer, 401, "invalid_signature")

    assert engine.status(acme, agent.agent.activity_id) == "in_progress"


def test_a_repeated_signed_report_is_a_duplicate(
    engine: Engine, acme: Tenant, signatures_required: None
) -> None:
    agent = start_signing_agent(engine, acme)
    raw = orjson.dumps(RESULT)
    headers = agent.headers(raw)

    answers = [agent.send("complete", raw, headers).json() for _ in range(3)]

    assert answers == [{"accepted": True, "duplicate": number > 0} for number in range(3)]


def test_a_repeated_signed_tool_call_has_one_effect_whatever_its_key(
    engine: Engine, acme: Tenant, signatures_required: None
) -> None:
    """The key is not signed, so a repeated message must not be able to choose another one."""
    agent = start_signing_agent(engine, acme)
    body = {"name": "Look", "agent_role": "ba", "blocking": False}
    raw = orjson.dumps(body)
    headers = agent.headers(raw)
    first = agent.send("tools/create_subtask", raw, headers)

    again = agent.send("tools/create_subtask", raw, headers)
    other = agent.send("tools/create_subtask", raw, {**headers, "Idempotency-Key": "other"})

    assert (first.status_code, again.json()) == (201, {**first.json(), "duplicate": True})
    problem(other, 401, "webhook_id_reused")
    assert count_activities(acme) == 2


def test_a_repeated_signed_heartbeat_does_not_count(
    engine: Engine, acme: Tenant, signatures_required: None
) -> None:
    agent = start_signing_agent(engine, acme)
    raw = orjson.dumps({"progress": {"done": 1}})
    headers = agent.headers(raw)
    agent.send("heartbeat", raw, headers)
    agent.post("heartbeat", {"progress": {"done": 2}})
    (before,) = engine.runs(acme, agent.agent.activity_id)

    again = agent.send("heartbeat", raw, headers)

    (after,) = engine.runs(acme, agent.agent.activity_id)
    assert (again.status_code, again.json()) == (200, {"stop": False, "reason": None})
    assert (after.beats, after.progress) == (before.beats, before.progress) == (2, {"done": 2})


def test_a_signed_heartbeat_counts_when_it_is_repeated_after_an_outage(
    engine: Engine, acme: Tenant, signatures_required: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = start_signing_agent(engine, acme)
    raw = orjson.dumps({"progress": {"done": 1}, "session_id": "s-1"})
    headers = agent.headers(raw)
    with monkeypatch.context() as outage:
        outage.setattr(reports, "beat", Mock(side_effect=OperationalError("server closed the connection")))
        assert agent.send("heartbeat", raw, headers).status_code == 503

    assert agent.send("heartbeat", raw, headers).status_code == 200

    (run,) = engine.runs(acme, agent.agent.activity_id)
    assert (run.beats, run.progress, run.session_id) == (1, {"done": 1}, "s-1")


def test_a_signed_report_is_refused_at_another_address_or_run(
    engine: Engine, acme: Tenant, signatures_required: None
) -> None:
    """All runs of the role share the secret, so the message id must belong to one run."""
    agent, other = start_signing_agent(engine, acme), start_signing_agent(engine, acme)
    raw = orjson.dumps({"output": {"content": "x"}})
    headers = agent.headers(raw)
    assert agent.send("complete", raw, headers).status_code == 200

    problem(other.send("complete", raw, headers), 401, "webhook_id_reused")
    problem(other.send("heartbeat", raw, headers), 401, "webhook_id_reused")

    assert engine.status(acme, other.agent.activity_id) == "in_progress"


def test_an_old_report_is_refused_although_it_was_accepted_before(
    engine: Engine, acme: Tenant, signatures_required: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = start_signing_agent(engine, acme)
    raw = orjson.dumps(RESULT)
    headers = agent.headers(raw, age=290)
    assert agent.send("complete", raw, headers).status_code == 200
    now = time.time()
    monkeypatch.setattr(clock, "timestamp", lambda: now + 20)

    problem(agent.send("complete", raw, headers), 401, "invalid_signature")


def test_reports_are_remembered_for_longer_than_they_are_valid() -> None:
    assert reports.REMEMBERED_SECONDS > 2 * 300


def test_without_redis_signed_reports_are_accepted_and_duplicates_recognised(
    engine: Engine, acme: Tenant, signatures_required: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = start_signing_agent(engine, acme)

    def fail(*arguments: Any) -> str:
        raise redis.ConnectionError("unavailable")

    monkeypatch.setattr(reports, "first_report_with", fail)
    raw = orjson.dumps(RESULT)
    headers = agent.headers(raw)

    answers = [agent.send("complete", raw, headers).json() for _ in range(2)]

    assert answers == [{"accepted": True, "duplicate": False}, {"accepted": True, "duplicate": True}]


def test_agents_without_required_signatures_report_with_the_token(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)

    assert agent.post("complete", RESULT).json() == {"accepted": True, "duplicate": False}
