"""Every call to a provider passes its governor. A run sleeps short waits; for long ones it gives its slot back, and the API says why."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis

from agents import governor
from agents.contracts import AdapterSettings, Completed
from agents.exceptions import AgentError, AgentRateLimited, RetryableAgentError
from agents.governor import Call, Outcome, providers
from agents.governor.calling import govern_call
from agents.governor.providers import Provider, profile_of, provider_of
from agents.models import Agent
from agents.runner import run_agent
from benchmarks.fake_provider import FakeProvider, Fault, Limits, Turn, Use
from benchmarks.fake_provider.limits import Meter
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.recording_link import RecordingLink
from tests.subjects import KEY, Calls, Fails, ModelSubject, Says, a_request


def settings_with_limits(model: ModelSubject, **limits: Any) -> AdapterSettings:
    return model.settings(options={"provider": limits})


def begin_calls(provider: Provider, number: int = 1) -> None:
    """Have other callers begin so many calls."""
    for _ in range(number):
        assert provider.governor.acquire(Call(str(uuid4()), 60.0)).granted


def report_faults(provider: Provider, number: int) -> None:
    for _ in range(number):
        call = Call(str(uuid4()), 60.0)
        assert provider.governor.acquire(call).granted
        provider.governor.report(call, Outcome.FAULT)


def test_the_governor_counts_a_call_with_its_usage(model: ModelSubject) -> None:
    settings = replace(model.script(Says("x", 500, 20)), options={"provider": "scale"})

    run_agent(a_request(settings))

    status = provider_of(settings).governor.status()
    assert (status.under_way, status.used["requests"], status.used["input_tokens"]) == (0, 1, 500)
    assert (status.used["day_tokens"], status.counts) == (520, {"ok": 1})


def test_a_call_beyond_the_limit_is_not_sent_and_uses_no_attempt(
    model: ModelSubject,
) -> None:
    settings = settings_with_limits(model, requests_per_minute=2)
    begin_calls(provider_of(settings), 2)

    with pytest.raises(AgentRateLimited) as caught:
        run_agent(a_request(settings))

    assert (caught.value.error_code, caught.value.uses_attempt, caught.value.nothing_sent) == (
        "provider_limit",
        False,
        True,
    )
    assert caught.value.retry_after is not None
    assert 50 < caught.value.retry_after < 65
    assert caught.value.held_by == f"{model.name} at {model.provider.place}"
    assert model.bodies == []


@pytest.mark.parametrize(
    "cause", list(governor.Reason)[1:], ids=[cause.value for cause in governor.Reason][1:]
)
def test_the_wait_is_known_except_when_it_depends_on_other_calls(
    model: ModelSubject, cause: governor.Reason
) -> None:
    provider, no_patience = provider_of(settings_with_limits(model, requests_per_minute=2)), 0.0
    answer = governor.Answer(granted=False, reason=cause, wait_seconds=3.0)

    class Refusing(governor.Governor):
        def acquire(self, call: Call) -> governor.Answer:
            return answer

    guard = Refusing(provider.governor.provider, provider.governor.profile)
    with (
        pytest.raises(AgentRateLimited) as caught,
        govern_call(provider, Call("one", 60.0), patience_seconds=no_patience, governor=guard),
    ):
        raise AssertionError("it was called")

    assert caught.value.room_is_timed is (cause is not governor.Reason.SLOTS)


def test_a_run_sleeps_through_a_short_wait(model: ModelSubject) -> None:
    settings = replace(model.script(Says()), options={"provider": {"first_slots": 1}})
    guard, other = provider_of(settings).governor, Call("other", 60.0)
    guard.acquire(other)
    threading.Timer(0.3, lambda: guard.report(other, Outcome.OK)).start()

    assert isinstance(run_agent(a_request(settings)), Completed)


def test_a_cancelled_run_stops_waiting_for_its_provider(
    model: ModelSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agents.governor import calling

    monkeypatch.setattr(calling, "STOP_SECONDS", 0.05)
    settings = settings_with_limits(model, first_slots=1)
    begin_calls(provider_of(settings))

    with pytest.raises(AgentError) as caught:
        run_agent(a_request(settings), link=RecordingLink(stop=lambda: "The work was cancelled."))

    assert caught.value.error_code == "run_cancelled"


def test_a_429_holds_all_callers_back_until_its_retry_after(model: ModelSubject) -> None:
    with pytest.raises(AgentRateLimited):
        model.run(Fails(429, 3_000))

    with pytest.raises(AgentRateLimited) as caught:
        model.run(Says())

    assert (caught.value.error_code, len(model.bodies)) == ("provider_limit", 1)
    assert caught.value.retry_after == pytest.approx(3_000, abs=100)


def test_a_run_waits_for_a_429_in_the_middle_of_its_conversation(model: ModelSubject) -> None:
    subtask = {"name": "a", "description": "b", "human_role": "editor", "blocking": False}
    link = RecordingLink()

    result = model.run(Calls("create_subtask", subtask), Fails(429, 0.2), Says("Done."), link=link)

    assert isinstance(result, Completed)
    assert (result.output.content, len(link.tool_calls), len(model.bodies)) == ("Done.", 1, 3)


def test_five_faults_open_the_breaker_of_this_provider_only(model: ModelSubject) -> None:
    model.provider.script(*[Fault(status=500)] * 5)
    for _ in range(5):
        with pytest.raises(RetryableAgentError):
            run_agent(a_request(model.settings(), timeout_seconds=60))

    with pytest.raises(AgentRateLimited) as caught:
        run_agent(a_request(model.settings()))

    assert (caught.value.error_code, len(model.bodies)) == ("breaker_open", 5)
    assert 30 < caught.value.retry_after < 65
    name, value = ("x-api-key", KEY) if model.name == "openai" else ("Authorization", f"Bearer {KEY}")
    another = model.settings(auth={"type": "header", "name": name, "value": value})
    assert isinstance(run_agent(a_request(another)), Completed)


def test_timeouts_of_runs_with_little_time_do_not_open_the_breaker(model: ModelSubject) -> None:
    model.provider.script(*[Fault("hang")] * 5)
    for _ in range(5):
        with pytest.raises(RetryableAgentError, match="within"):
            run_agent(a_request(model.settings(), timeout_seconds=0.1))

    status = provider_of(model.settings()).governor.status()
    assert (status.breaker, status.faults_in_a_row, status.counts) == ("closed", 0, {"other": 5})


def raise_unavailable() -> Any:
    raise redis.ConnectionError("unavailable")


def test_without_redis_no_provider_is_called_and_no_attempt_is_used(
    model: ModelSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(governor.connections, "client", raise_unavailable)
        with pytest.raises(AgentRateLimited) as caught:
            run_agent(a_request(model.settings()))

    assert (caught.value.error_code, caught.value.uses_attempt, model.bodies) == (
        "limiter_unavailable",
        False,
        [],
    )


def test_an_answer_counts_even_if_the_governor_cannot_be_updated(
    model: ModelSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:

        def answer(body: Any) -> Turn:
            patched.setattr(governor.connections, "client", raise_unavailable)
            return Turn("Kept.")

        model.provider.default = answer
        result = run_agent(a_request(model.settings()))

    assert isinstance(result, Completed)
    assert result.output.content == "Kept."


def test_the_remaining_quota_in_a_response_holds_the_next_call_back(model: ModelSubject) -> None:
    model.provider.meter.limits = Limits(requests=1)
    settings = settings_with_limits(model, requests_per_minute=50)
    run_agent(a_request(settings))

    with pytest.raises(AgentRateLimited) as caught:
        run_agent(a_request(settings))

    assert (caught.value.error_code, len(model.bodies)) == ("provider_limit", 1)


# Who shares what


def test_the_state_of_a_provider_belongs_to_its_address_and_credential_and_contains_no_secret() -> None:
    one = AdapterSettings("openai", "https://models.example/v1", {"type": "bearer", "token": KEY}, "m")
    keys = {
        name: provider_of(each).key
        for name, each in {
            "one": one,
            "another path": replace(one, endpoint="https://models.example/other"),
            "another credential": replace(one, auth={"type": "bearer", "token": "another"}),
            "another place": replace(one, endpoint="https://others.example/v1"),
            "another adapter": replace(one, adapter="anthropic"),
        }.items()
    }

    assert keys["one"] == keys["another path"]
    assert len(set(keys.values())) == 4
    assert not any(KEY in key for key in keys.values())


def test_limits_of_the_role_precede_those_of_the_address_and_of_the_adapter(settings: Any) -> None:
    settings.ORCHESTRATOR_PROVIDER_LIMITS = {
        "openai": "free",
        "models.example:443": {"tier": "build", "most_slots": 3, "first_slots": 1},
    }

    assert profile_of(None, "openai", "elsewhere:443").requests_per_minute == 5
    assert profile_of(None, "openai", "models.example:443").requests_per_minute == 50
    assert profile_of(None, "openai", "models.example:443").most_slots == 3
    assert profile_of({"requests_per_minute": 7}, "openai", "models.example:443").requests_per_minute == 7
    assert profile_of(None, "anthropic", "elsewhere:443").requests_per_minute is None


# In the engine


@pytest.fixture
def serve_model(engine: Engine, tenant: Tenant, provider: FakeProvider) -> Callable[..., Provider]:
    """Return a function that gives the tenant's role qa to a model with these limits."""
    pytest.importorskip("openai")

    def serve(**limits: Any) -> Provider:
        Agent.objects.filter(role="qa").update(options={"provider": limits})
        chosen = AdapterSettings(
            "openai", provider.openai_url, {"type": "none"}, "m-1", options={"provider": limits}
        )
        provider.key = None
        engine.serve(tenant, "qa", adapter="openai", endpoint=provider.openai_url, model="m-1")
        return provider_of(chosen)

    yield serve
    Agent.objects.filter(role="qa").update(options={}, instructions="")


def waiting_for(api: Any, activity_id: UUID) -> dict[str, Any]:
    answer = api("viewer").get(f"/api/v1/activities/{activity_id}/why/").json()
    listed = api("viewer").get("/api/v1/activities/").json()["results"][0]["waiting_for"]
    assert (listed["code"], listed["holder"]) == (answer["code"], answer["holder"])
    return answer


def test_a_model_completes_an_activity(
    engine: Engine, tenant: Tenant, serve_model: Any, provider: FakeProvider
) -> None:
    Agent.objects.filter(role="qa").update(instructions="You write titles.")
    serve_model()
    provider.script(Turn("A good title."))
    (activity_id,) = engine.submit(tenant)

    engine.deliver()

    assert engine.status(tenant, activity_id) == "done"
    assert str(provider.recorder.calls[0].body["messages"]).count("You write titles.") == 1
    with tenant_scope(tenant.pk):
        (run,) = engine.runs(tenant, activity_id)
        assert run.usage["model"] == "m-1"


def test_a_model_reports_a_blocker(
    engine: Engine, tenant: Tenant, serve_model: Any, provider: FakeProvider
) -> None:
    serve_model()
    provider.script(
        Turn("", (Use("report_blocker", {"type": "api_outage", "message": "The search is down."}),))
    )
    (activity_id,) = engine.submit(tenant)

    engine.deliver()

    assert engine.status(tenant, activity_id) == "blocked"
    assert len(provider.recorder.calls) == 1


@pytest.mark.parametrize("code", ["provider_limit", "breaker_open"])
def test_the_waiting_reason_names_the_provider_and_no_attempt_is_used(
    engine: Engine, tenant: Tenant, serve_model: Any, provider: FakeProvider, api: Any, code: str
) -> None:
    provider_of_role = serve_model(requests_per_minute=1 if code == "provider_limit" else 100)
    if code == "breaker_open":
        report_faults(provider_of_role, 5)
    else:
        begin_calls(provider_of_role)
    (activity_id,) = engine.submit(tenant, max_attempts=1)

    engine.deliver()

    cause = waiting_for(api, activity_id)
    assert (cause["code"], cause["holder"]) == (code, f"openai at {provider.place}")
    assert engine.get(tenant, activity_id).attempts == 0
    assert provider.recorder.calls == []


def test_called_providers_are_listed_without_their_credentials(model: ModelSubject) -> None:
    model.run(Says())

    (known,) = providers.list_known_providers()

    assert (known.adapter, known.place, known.key) == (
        model.name,
        model.provider.place,
        provider_of(model.settings()).key,
    )
    assert KEY not in repr(known)


def calls_made(settings: AdapterSettings, times: int, **changes: Any) -> list[bool]:
    """Return for each call whether it was made. The governor or the provider refused the others."""
    made = []
    for _ in range(times):
        try:
            run_agent(a_request(settings, **changes))
            made.append(True)
        except AgentRateLimited:
            made.append(False)
    return made


def test_a_limit_that_the_provider_reports_is_respected_without_configuration(
    model: ModelSubject,
) -> None:
    settings = model.script(*[Says("x", 1, 1)] * 12)
    model.provider.meter = Meter(Limits(requests=10))

    made = calls_made(settings, 12, priority=10)

    assert made == [True] * 9 + [False] * 3
    assert 429 not in model.provider.recorder.statuses()
    assert provider_of(settings).governor.status().limits["requests"] == 10
    assert calls_made(settings, 2, priority=1) == [True, False]  # because the last tenth is for urgent work
    assert 429 not in model.provider.recorder.statuses()


def test_concurrent_callers_respect_a_limit_that_the_provider_reports(model: ModelSubject) -> None:
    settings = model.script(*[Says("x", 1, 1)] * 20)
    model.provider.meter = Meter(Limits(requests=10))
    barrier = threading.Barrier(4)

    def caller(number: int) -> int:
        barrier.wait()
        return sum(calls_made(settings, 5, priority=10))

    start = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        made = sum(pool.map(caller, range(4)))

    refilled = math.ceil((time.monotonic() - start) / 6)  # because ten a minute is one every six seconds
    assert 9 <= made <= 9 + refilled
    assert 429 not in model.provider.recorder.statuses()
