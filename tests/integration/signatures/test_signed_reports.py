"""What agents send: signatures are checked, and a report counts once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import orjson
import pytest
import redis
from standardwebhooks.webhooks import Webhook

from activities.execution import reports
from agents import configuration
from agents.models import Agent
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.integration.signatures.secrets_in_force import CONFIGS, secrets_of
from tests.toolbox import OUTPUT, Caller, at_work, count_of

pytestmark = pytest.mark.usefixtures("one_at_a_time")


@pytest.fixture
def signing(engine: Engine) -> Iterator[None]:
    """Agents of the role qa must sign what they report."""
    Agent.objects.filter(role="qa").update(options={"signed_callbacks": True})
    configuration.forget()
    yield
    Agent.objects.filter(role="qa").update(options={})
    configuration.forget()


class Signing:
    """An agent that signs with the public library."""

    def __init__(self, agent: Caller, secret: str) -> None:
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
        """`signed` is the body that the signature is made of, when that is another."""
        extra = more.pop("extra", {})
        raw = orjson.dumps(body)
        headers = self.headers(orjson.dumps(signed) if signed is not None else raw, **more)
        return self.sent(verb, raw, {**headers, **extra})

    def sent(self, verb: str, raw: bytes, headers: dict[str, str]) -> Any:
        place = f"/{self.agent.address}{verb}/" if verb else f"/{self.agent.address}"
        if not verb:
            return self.agent.client.get(place, headers=headers)
        return self.agent.client.generic("POST", place, raw, "application/json", headers=headers)


def signing_agent(engine: Engine, tenant: Tenant) -> Signing:
    _, agent = at_work(engine, tenant)
    return Signing(agent, secrets_of(tenant)[0])


def test_who_signs_is_let_in_with_either_secret(
    api: Any, engine: Engine, acme: Tenant, signing: None
) -> None:
    agent = signing_agent(engine, acme)
    old = agent.secret
    new = api().post(f"{CONFIGS}qa/rotate-secret/").json()["secret"]

    for secret in (old, new):
        assert Signing(agent.agent, secret).post("heartbeat", {}).status_code == 200
    api().post(f"{CONFIGS}qa/rotate-secret/")
    problem(Signing(agent.agent, old).post("heartbeat", {}), 401, "invalid_signature")
    assert Signing(agent.agent, new).post("complete", OUTPUT).json() == {"accepted": True, "duplicate": False}


def test_agents_that_must_sign_get_nowhere_with_the_token_alone(
    engine: Engine, acme: Tenant, signing: None
) -> None:
    agent = signing_agent(engine, acme)

    for answer in (
        agent.agent.post("complete", OUTPUT),
        agent.agent.post("heartbeat", {}),
        agent.agent.post("fail", {"error": {"message": "x"}}),
        agent.agent.use("report_blocker", type="api_outage", message="x"),
        agent.agent.job(),
    ):
        problem(answer, 401, "invalid_signature")

    assert engine.status(acme, agent.agent.activity_id) == "in_progress"
    assert agent.sent("", b"", agent.headers(b"")).json()["execution_id"] == str(agent.agent.run_id)


@pytest.mark.parametrize("must", [True, False], ids=["must sign", "may sign"])
def test_a_signature_that_does_not_fit_is_401_and_nothing_happens(
    engine: Engine, acme: Tenant, other_tenant: Tenant, request: Any, must: bool
) -> None:
    """Also where the token alone would do: anyone who signs is held to it."""
    if must:
        request.getfixturevalue("signing")
    agent = signing_agent(engine, acme)
    raw = orjson.dumps(OUTPUT)
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
        **{whose: Signing(agent.agent, secret).headers(raw) for whose, secret in others.items()},
        **{what: {**good, **headers} for what, headers in changed.items()},
    }  # fmt: skip

    for what, headers in wrong.items():
        answer = agent.sent("complete", raw, headers)
        assert answer.status_code == 401, (what, answer.content)
        problem(answer, 401, "invalid_signature")

    assert engine.status(acme, agent.agent.activity_id) == "in_progress"


def test_a_report_that_comes_again_gets_the_first_outcome_and_has_no_effect(
    engine: Engine, acme: Tenant, signing: None
) -> None:
    agent = signing_agent(engine, acme)
    raw = orjson.dumps(OUTPUT)
    headers = agent.headers(raw)

    answers = [agent.sent("complete", raw, headers).json() for _ in range(3)]

    assert answers == [{"accepted": True, "duplicate": number > 0} for number in range(3)]


def test_a_tool_call_that_comes_again_has_one_effect_whatever_key_it_is_given(
    engine: Engine, acme: Tenant, signing: None
) -> None:
    """The key is no part of what is signed, so anyone who repeats a message must not choose another."""
    agent = signing_agent(engine, acme)
    body = {"name": "Look", "agent_role": "ba", "blocking": False}
    raw = orjson.dumps(body)
    headers = agent.headers(raw)
    first = agent.sent("tools/create_subtask", raw, headers)

    again = agent.sent("tools/create_subtask", raw, headers)
    other = agent.sent("tools/create_subtask", raw, {**headers, "Idempotency-Key": "other"})

    assert (first.status_code, again.json()) == (201, {**first.json(), "duplicate": True})
    problem(other, 401, "webhook_id_reused")
    assert count_of(acme) == 2


def test_a_heartbeat_that_comes_again_is_no_sign_of_life_and_counts_nothing(
    engine: Engine, acme: Tenant, signing: None
) -> None:
    agent = signing_agent(engine, acme)
    raw = orjson.dumps({"progress": {"done": 1}})
    headers = agent.headers(raw)
    agent.sent("heartbeat", raw, headers)
    agent.post("heartbeat", {"progress": {"done": 2}})
    (before,) = engine.runs(acme, agent.agent.activity_id)

    again = agent.sent("heartbeat", raw, headers)

    (after,) = engine.runs(acme, agent.agent.activity_id)
    assert (again.status_code, again.json()) == (200, {"stop": False, "reason": None})
    assert (after.beats, after.progress) == (before.beats, before.progress) == (2, {"done": 2})


def test_a_report_is_of_no_use_at_another_address_or_for_another_run(
    engine: Engine, acme: Tenant, signing: None
) -> None:
    """The secret is that of all runs of the role; the memory tells them apart."""
    agent, other = signing_agent(engine, acme), signing_agent(engine, acme)
    raw = orjson.dumps({"output": {"content": "x"}})
    headers = agent.headers(raw)
    assert agent.sent("complete", raw, headers).status_code == 200

    problem(other.sent("complete", raw, headers), 401, "webhook_id_reused")
    problem(other.sent("heartbeat", raw, headers), 401, "webhook_id_reused")

    assert engine.status(acme, other.agent.activity_id) == "in_progress"


def test_an_old_report_is_refused_though_it_came_before(
    engine: Engine, acme: Tenant, signing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = signing_agent(engine, acme)
    raw = orjson.dumps(OUTPUT)
    headers = agent.headers(raw, age=290)
    assert agent.sent("complete", raw, headers).status_code == 200
    now = time.time()
    monkeypatch.setattr("agents.webhook_signing.time.time", lambda: now + 20)

    problem(agent.sent("complete", raw, headers), 401, "invalid_signature")


def test_reports_are_remembered_for_longer_than_they_count() -> None:
    assert reports.REMEMBERED_SECONDS > 2 * 300


def test_while_redis_is_away_signed_reports_are_taken_and_the_database_knows_them_again(
    engine: Engine, acme: Tenant, signing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = signing_agent(engine, acme)

    def away(*arguments: Any) -> str:
        raise redis.ConnectionError("away")

    monkeypatch.setattr(reports, "first_report_with", away)
    raw = orjson.dumps(OUTPUT)
    headers = agent.headers(raw)

    answers = [agent.sent("complete", raw, headers).json() for _ in range(2)]

    assert answers == [{"accepted": True, "duplicate": False}, {"accepted": True, "duplicate": True}]


def test_agents_that_need_not_sign_may_report_as_ever(engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)

    assert agent.post("complete", OUTPUT).json() == {"accepted": True, "duplicate": False}
