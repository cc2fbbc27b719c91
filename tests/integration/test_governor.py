"""The governor of a provider: windows, learned limits, slots and the breaker, shared by all processes."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from agents import governor as governing
from agents.governor import Answer, Call, Governor, Outcome, Reason, keys
from agents.governor.limits import Profile, ReportedLimits, read_limits
from tenants import redis
from tests import redis_clock
from tests.engine import eventually
from tests.redis_clock import RedisClock

_ids = itertools.count()


def call(*, urgent: bool = False, tokens_in: int = 0, tokens_out: int = 0, deadline: float = 60.0) -> Call:
    return Call(f"call-{next(_ids)}", deadline, tokens_in, tokens_out, urgent)


def governor(*, minute: float = 60.0, day: float = 86_400.0, **limits: float) -> Governor:
    settings = {"first_slots": 50, "most_slots": 50, "low_share": 0.0} | limits
    return Governor("test", Profile(**settings), minute_seconds=minute, day_seconds=day)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch, database: None) -> RedisClock:
    return redis_clock.stop(monkeypatch, governing, "ACQUIRE", "REPORT", "STATUS")


def acquire_several(guard: Governor, times: int, **fields: int) -> list[Answer]:
    return [guard.acquire(call(**fields)) for _ in range(times)]


# Windows


def test_at_most_the_limit_of_requests_starts_within_a_minute():
    answers = acquire_several(governor(requests_per_minute=5), 7)

    assert [answer.granted for answer in answers] == [True] * 5 + [False] * 2
    assert answers[-1].reason is Reason.REQUESTS
    assert answers[-1].wait_seconds == pytest.approx(60, abs=1.5)


def test_the_wait_that_a_refusal_names_is_at_least_the_window_and_enough(clock):
    guard = governor(requests_per_minute=2)
    acquire_several(guard, 2)

    wait = guard.acquire(call()).wait_seconds

    assert 60 <= wait <= 61
    clock.advance(wait)
    assert guard.acquire(call()).granted


def test_a_request_leaves_the_window_after_a_minute(clock):
    guard = governor(requests_per_minute=2)
    guard.acquire(call())
    clock.advance(40)
    guard.acquire(call())

    assert guard.acquire(call()).wait_seconds == pytest.approx(20, abs=1.5)
    clock.advance(19)
    assert not guard.acquire(call()).granted
    clock.advance(3)
    assert guard.acquire(call()).granted
    assert not guard.acquire(call()).granted


def test_a_call_needs_room_in_every_dimension_and_takes_nothing_when_one_is_full():
    guard = governor(requests_per_minute=10, input_tokens_per_minute=100, output_tokens_per_minute=50)

    assert guard.acquire(call(tokens_in=90, tokens_out=10)).granted
    assert guard.acquire(call(tokens_in=20)).reason is Reason.INPUT_TOKENS
    assert guard.acquire(call(tokens_out=45)).reason is Reason.OUTPUT_TOKENS
    assert guard.status().used == {"requests": 1, "input_tokens": 90, "output_tokens": 10, "day_tokens": 0}


def test_daily_tokens_are_counted_over_a_day(clock):
    guard = governor(tokens_per_day=1_000)
    guard.acquire(call(tokens_in=600, tokens_out=300))
    clock.advance(3_600)

    refused = guard.acquire(call(tokens_in=200))

    assert refused.reason is Reason.DAY_TOKENS
    assert refused.wait_seconds == pytest.approx(23 * 3_600, rel=0.05)


def test_a_call_larger_than_the_limit_starts_in_an_empty_window(clock):
    guard = governor(input_tokens_per_minute=100)
    guard.acquire(call(tokens_in=1))

    assert not guard.acquire(call(tokens_in=500)).granted
    clock.advance(61)
    assert guard.acquire(call(tokens_in=500)).granted
    assert not guard.acquire(call(tokens_in=1)).granted


def test_unused_reservations_are_returned_once():
    guard, first = governor(input_tokens_per_minute=100), call(tokens_in=100)
    guard.acquire(first)

    assert guard.report(first, Outcome.OK, input_tokens=30, output_tokens=0)
    assert not guard.report(first, Outcome.OK, input_tokens=0, output_tokens=0)

    assert guard.status().used["input_tokens"] == 30


def test_acquiring_twice_for_one_call_reserves_once():
    guard, one = governor(requests_per_minute=5), call()

    assert guard.acquire(one).granted
    assert guard.acquire(one).granted
    assert (guard.status().used["requests"], guard.status().under_way) == (1, 1)


# Reported limits


def test_a_lower_remaining_quota_applies_until_the_reset(clock):
    guard, one = governor(requests_per_minute=50), call()
    guard.acquire(one)
    guard.report(one, Outcome.OK, learned=ReportedLimits({"requests": 1}, {"requests": 20.0}))

    assert guard.acquire(call()).granted
    assert guard.acquire(call()).wait_seconds == pytest.approx(20, abs=1.5)
    clock.advance(22)
    assert all(answer.granted for answer in acquire_several(guard, 40))


def test_a_higher_remaining_quota_changes_nothing():
    guard, one = governor(requests_per_minute=2), call()
    guard.acquire(one)
    guard.report(one, Outcome.OK, learned=ReportedLimits({"requests": 1_000}, {}))

    assert [answer.granted for answer in acquire_several(guard, 2)] == [True, False]


def test_below_a_tenth_only_urgent_calls_start_until_the_reset(clock):
    guard, one = governor(requests_per_minute=50, low_share=0.1), call()
    guard.acquire(one)
    guard.report(one, Outcome.OK, learned=ReportedLimits({"requests": 4}, {"requests": 30.0}))

    assert not guard.acquire(call()).granted
    assert guard.acquire(call(urgent=True)).granted
    clock.advance(32)
    assert guard.acquire(call()).granted


def report_remaining(
    guard: Governor, left: int, reset: float = 30.0, limit: int | None = None, **fields: int
) -> None:
    """Make one call whose answer reports the remaining quota."""
    one = call(**fields)
    assert guard.acquire(one).granted
    reported = ReportedLimits(
        {"requests": left}, {"requests": reset}, limits={"requests": limit} if limit else {}
    )
    guard.report(one, Outcome.OK, learned=reported)


def test_an_unconfigured_limit_is_learned_and_its_last_tenth_is_for_urgent_calls():
    guard = governor(low_share=0.1)
    report_remaining(guard, 9, limit=10)

    assert [answer.granted for answer in acquire_several(guard, 9)] == [True] * 8 + [False]
    assert guard.acquire(call(urgent=True)).granted
    refused = guard.acquire(call(urgent=True))
    assert (refused.granted, refused.reason) == (False, Reason.REQUESTS)
    assert refused.wait_seconds == pytest.approx(30, abs=2)
    assert (guard.status().limits["requests"], guard.status().used["requests"]) == (10, 10)


def test_usage_by_others_of_a_learned_limit_counts_until_its_reset(clock):
    guard = governor(low_share=0.1)
    report_remaining(guard, 1, reset=20.0, limit=10)

    assert not guard.acquire(call()).granted
    clock.advance(22)
    assert [answer.granted for answer in acquire_several(guard, 10)] == [True] * 9 + [False]


def test_a_limit_is_at_least_the_reported_remaining_quota():
    guard = governor(low_share=0.1)
    report_remaining(guard, 3)
    assert guard.status().limits["requests"] == 4

    report_remaining(guard, 19)

    assert guard.status().limits["requests"] == 20


def test_a_limit_of_one_still_allows_one_call(clock):
    guard = governor(low_share=0.1)
    report_remaining(guard, 1, reset=0.0, limit=1)

    assert [answer.granted for answer in acquire_several(guard, 2)] == [True, False]
    clock.advance(62)
    assert guard.acquire(call()).granted


def test_a_late_reset_makes_the_window_an_hour_or_a_day():
    guard = governor(low_share=0.1)
    report_remaining(guard, 4, reset=2_000.0, limit=5)

    assert [answer.granted for answer in acquire_several(guard, 4)] == [True] * 3 + [False]
    assert guard.acquire(call()).wait_seconds == pytest.approx(2_000, rel=0.05)
    other = Governor("other", Profile(first_slots=50, low_share=0.1))
    report_remaining(other, 1, reset=40_000.0, limit=5)
    assert other.acquire(call()).wait_seconds == pytest.approx(40_000, rel=0.05)


def test_calls_before_a_limit_was_learned_count_only_as_the_provider_reports():
    guard, early, silent = governor(), [call(tokens_in=5_000) for _ in range(3)], call(tokens_in=5_000)
    for each in (*early, silent):
        guard.acquire(each)
    reported = ReportedLimits(
        {"input_tokens": 9_700}, {"input_tokens": 30.0}, limits={"input_tokens": 10_000}
    )
    for each in early:
        guard.report(each, Outcome.OK, input_tokens=100, output_tokens=1, learned=reported)
    guard.report(silent, Outcome.OK, input_tokens=100, output_tokens=1)

    assert guard.status().used["input_tokens"] == 300


def test_an_answer_without_limits_teaches_none():
    guard, one = governor(), call(tokens_in=100)
    guard.acquire(one)
    guard.report(one, Outcome.OK, input_tokens=100, output_tokens=100)

    assert set(guard.status().limits.values()) == {None}


def test_no_call_starts_when_nothing_of_a_learned_limit_remains(clock):
    guard = governor()
    report_remaining(guard, 0, limit=10)

    assert guard.acquire(call(urgent=True)).reason is Reason.REQUESTS
    clock.advance(62)
    assert guard.acquire(call()).granted


def test_calls_under_way_count_after_another_answer_has_reported_the_same_limit():
    guard, one = governor(), call()
    report_remaining(guard, 9, limit=10)
    guard.acquire(one)
    acquire_several(guard, 3)

    guard.report(one, Outcome.OK, learned=ReportedLimits({"requests": 8}, {}, limits={"requests": 10}))

    assert guard.status().used["requests"] == 5


def test_usage_in_a_shorter_window_is_forgotten_when_a_longer_one_is_learned(clock):
    guard = governor()
    report_remaining(guard, 9, limit=10)
    acquire_several(guard, 2)

    report_remaining(guard, 5, reset=2_000.0, limit=10)

    assert guard.status().used["requests"] == 5
    clock.advance(3_700)
    assert guard.status().used["requests"] == 0


def test_a_call_from_before_a_longer_window_was_learned_gives_nothing_back(clock):
    guard = governor()

    def report_tokens(one: Call, left: int, reset: float) -> None:
        reported = ReportedLimits(
            {"input_tokens": left}, {"input_tokens": reset}, limits={"input_tokens": 10_000}
        )
        guard.report(one, Outcome.OK, input_tokens=100, output_tokens=1, learned=reported)

    first, early, other = call(tokens_in=100), call(tokens_in=5_000), call(tokens_in=100)
    guard.acquire(first)
    report_tokens(first, left=9_900, reset=30.0)
    guard.acquire(early)
    guard.acquire(other)
    clock.advance(1)
    report_tokens(other, left=4_000, reset=2_000.0)

    guard.report(early, Outcome.OK, input_tokens=100, output_tokens=1)

    assert guard.status().used["input_tokens"] == 6_000


def test_a_learned_limit_applies_for_an_hour(clock):
    guard = governor()
    report_remaining(guard, 9, limit=10)

    clock.advance(3_500)
    assert guard.status().limits["requests"] == 10
    clock.advance(200)
    assert guard.status().limits["requests"] is None


def test_usage_by_others_is_found_after_a_call_that_cost_less_than_reserved():
    guard = governor()
    for estimate, left in ((100, 9_900), (5_000, 7_800)):  # others have used 2,000
        one = call(tokens_in=estimate)
        guard.acquire(one)
        reported = ReportedLimits(
            {"input_tokens": left}, {"input_tokens": 30.0}, limits={"input_tokens": 10_000}
        )
        guard.report(one, Outcome.OK, input_tokens=100, output_tokens=1, learned=reported)

    assert guard.status().used["input_tokens"] == 2_200


def test_a_configured_limit_is_not_replaced_by_a_reported_one():
    guard = governor(requests_per_minute=3)
    report_remaining(guard, 999, limit=1_000)

    assert [answer.granted for answer in acquire_several(guard, 3)] == [True, True, False]


def test_a_limit_that_is_configured_later_replaces_the_reported_one():
    report_remaining(governor(), 9, limit=10)

    answers = acquire_several(governor(requests_per_minute=3), 3)

    assert [answer.granted for answer in answers] == [True, True, False]


def test_consecutive_refusals_without_a_time_pause_for_longer_each_time(clock):
    guard, waits = governor(first_slots=1), []
    for _ in range(4):
        one = call()
        assert guard.acquire(one).granted
        guard.report(one, Outcome.LIMITED)
        waits.append(guard.acquire(call()).wait_seconds)
        clock.advance(100)
    good = call()
    guard.acquire(good)
    guard.report(good, Outcome.OK)
    last = call()
    guard.acquire(last)
    guard.report(last, Outcome.LIMITED)

    assert waits == pytest.approx([1, 2, 4, 8], abs=0.2)
    assert guard.acquire(call()).wait_seconds == pytest.approx(1, abs=0.2)


def test_times_in_headers_are_relative_to_the_clock_of_the_provider():
    limits = read_limits(
        {
            "Date": "Fri, 01 May 2026 12:00:00 GMT",
            "anthropic-ratelimit-requests-limit": "10",
            "anthropic-ratelimit-requests-remaining": "7",
            "anthropic-ratelimit-requests-reset": "2026-05-01T12:00:30Z",
            "retry-after": "Fri, 01 May 2026 12:00:12 GMT",
        }
    )

    assert limits == ReportedLimits({"requests": 7}, {"requests": 30.0}, 12.0, {"requests": 10})


def test_generic_rate_limit_headers_apply_to_requests():
    limits = read_limits({"RateLimit-Limit": "10", "RateLimit-Remaining": "7", "RateLimit-Reset": "30"})

    assert limits == ReportedLimits({"requests": 7}, {"requests": 30.0}, None, {"requests": 10})


def test_headers_of_anthropic_and_openai_are_read_and_invalid_ones_are_ignored():
    from datetime import UTC, datetime

    now = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
    anthropic = read_limits(
        {
            "Anthropic-RateLimit-Requests-Remaining": "7",
            "anthropic-ratelimit-requests-reset": "2026-05-01T12:00:30Z",
            "anthropic-ratelimit-tokens-remaining": "900",
            "anthropic-ratelimit-input-tokens-remaining": "500",
            "retry-after": "12",
        },
        now=now,
    )
    openai = read_limits(
        {
            "x-ratelimit-remaining-requests": "3",
            "x-ratelimit-reset-requests": "1m30.5s",
            "x-ratelimit-remaining-tokens": "10",
            "x-ratelimit-reset-tokens": "250ms",
        },
        now=now,
    )
    nonsense = read_limits(
        {
            "anthropic-ratelimit-requests-remaining": "-1",
            "x-ratelimit-remaining-tokens": "9" * 40,
            "retry-after": "soon",
        },
        now=now,
    )

    assert anthropic == ReportedLimits({"requests": 7, "input_tokens": 500}, {"requests": 30.0}, 12.0)
    assert openai == ReportedLimits(
        {"requests": 3, "input_tokens": 10}, {"requests": 90.5, "input_tokens": 0.25}, None
    )
    assert nonsense == ReportedLimits()


# Slots


def test_slots_grow_by_one_with_each_successful_call_up_to_the_maximum():
    guard = governor(first_slots=2, most_slots=4)
    first = [call(), call()]
    assert [guard.acquire(each).granted for each in (*first, call())] == [True, True, False]

    for each in first:
        guard.report(each, Outcome.OK)

    assert guard.status().slots == 4
    assert [answer.granted for answer in acquire_several(guard, 5)] == [True] * 4 + [False]


def test_a_429_halves_the_slots_once_for_concurrent_calls_and_leaves_at_least_one(clock):
    guard = governor(first_slots=8)
    under_way = [call() for _ in range(8)]
    for each in under_way:
        guard.acquire(each)

    for each in under_way:
        guard.report(each, Outcome.LIMITED, learned=ReportedLimits(retry_after=0.0))
    assert guard.status().slots == 4

    for _ in range(5):
        clock.advance(2)
        again = call()
        assert guard.acquire(again).granted
        guard.report(again, Outcome.LIMITED, learned=ReportedLimits(retry_after=0.0))
    assert guard.status().slots == 1


def test_retry_after_holds_every_call_until_then(clock):
    guard, one = governor(), call()
    guard.acquire(one)
    guard.report(one, Outcome.LIMITED, learned=ReportedLimits(retry_after=12.0))

    refused = guard.acquire(call(urgent=True))

    assert refused.reason is Reason.RETRY_AFTER
    assert refused.wait_seconds == pytest.approx(12, abs=0.5)
    clock.advance(12.1)
    assert guard.acquire(call()).granted


def test_a_refused_call_uses_no_tokens():
    guard, one = governor(input_tokens_per_minute=100), call(tokens_in=80)
    guard.acquire(one)
    guard.report(one, Outcome.LIMITED, input_tokens=80, output_tokens=0)

    assert guard.status().used["input_tokens"] == 0


# Breaker


def report_faults(guard: Governor, times: int) -> None:
    for _ in range(times):
        each = call()
        assert guard.acquire(each).granted
        guard.report(each, Outcome.FAULT)


def test_five_consecutive_faults_open_the_breaker():
    guard = governor()
    for between in (Outcome.OK, Outcome.LIMITED):
        report_faults(guard, 4)
        other_call = call()
        guard.acquire(other_call)
        guard.report(other_call, between, learned=ReportedLimits(retry_after=0.0))
    report_faults(guard, 4)
    assert guard.status().breaker == "closed"

    report_faults(guard, 1)

    assert guard.acquire(call(urgent=True)).reason is Reason.BREAKER
    assert guard.status().breaker == "open"
    assert guard.status().breaker_seconds == pytest.approx(60, abs=1)


def test_429_answers_never_open_the_breaker():
    guard = governor()
    for _ in range(20):
        each = call()
        assert guard.acquire(each).granted
        guard.report(each, Outcome.LIMITED, learned=ReportedLimits(retry_after=0.0))

    assert guard.status().breaker == "closed"


def test_after_the_cooldown_one_probe_decides_about_the_breaker(clock):
    guard = governor()
    report_faults(guard, 5)
    clock.advance(61)

    probe = call(deadline=300)
    assert guard.acquire(probe).granted
    meanwhile = guard.acquire(call())
    # The probe may take longer than another cooldown, but its outcome may come at any time.
    assert (meanwhile.reason, meanwhile.wait_seconds) == (Reason.BREAKER, 60)
    guard.report(probe, Outcome.FAULT)
    assert guard.acquire(call()).wait_seconds == pytest.approx(60, abs=1)

    clock.advance(61)
    second = call()
    assert guard.acquire(second).granted
    guard.report(second, Outcome.OK)
    assert all(answer.granted for answer in acquire_several(guard, 5))
    assert guard.status().counts["opened"] == 2


def test_the_answer_to_an_older_call_does_not_end_the_probe(clock):
    guard, older = governor(), call(deadline=300)
    guard.acquire(older)
    report_faults(guard, 5)
    clock.advance(61)
    guard.acquire(call())

    guard.report(older, Outcome.FAULT)

    assert guard.acquire(call()).reason is Reason.BREAKER


def test_a_probe_whose_process_died_is_replaced_after_its_deadline(clock):
    guard = governor()
    report_faults(guard, 5)
    clock.advance(61)
    guard.acquire(call(deadline=10))

    clock.advance(16)

    assert guard.acquire(call()).granted


def test_providers_do_not_affect_each_other():
    guard = governor(requests_per_minute=1)
    report_faults(Governor("another", guard.profile), 1)

    assert guard.acquire(call()).granted


# Many processes


def test_the_slot_of_a_dead_process_is_freed_and_its_reservation_stays_used(clock):
    guard = governor(first_slots=1, most_slots=1, requests_per_minute=10)
    lost = call(deadline=10)
    guard.acquire(lost)
    refused = guard.acquire(call())
    assert refused.reason is Reason.SLOTS
    assert refused.wait_seconds <= 0.25, "a call may end at any time"

    clock.advance(15.1)

    assert guard.status().under_way == 0
    assert guard.acquire(call()).granted
    assert not guard.report(lost, Outcome.OK)
    assert guard.status().used["requests"] == 2


def test_concurrent_threads_never_exceed_slots_or_requests():
    guard = governor(first_slots=7, most_slots=7, requests_per_minute=20)
    barrier = threading.Barrier(12)

    def work(_: int) -> int:
        barrier.wait()
        granted = 0
        for _ in range(10):
            each = call()
            if guard.acquire(each).granted:
                granted += 1
                assert guard.status().under_way <= 7
                guard.report(each, Outcome.OK)
        return granted

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(work, range(12))) == 20


def test_no_window_exceeds_the_limit_while_processes_are_killed(tmp_path, clock):
    """Each process writes the starts of its calls into a file."""
    minute, limit, began = 60.0, 12, tmp_path
    guard = governor(requests_per_minute=limit)
    redis.client().ping()
    children = []
    for number in range(10):
        child = os.fork()
        if child == 0:  # pragma: no cover - in the child
            _call_until_killed(guard, began / str(number))
        children.append(child)

    def read_starts() -> list[float]:
        # A line may be cut short by the end of its process, or not be complete yet.
        lines = [line for file in began.iterdir() for line in file.read_text().splitlines(keepends=True)]
        return sorted(float(line) for line in lines if line.endswith("\n"))

    try:
        eventually(lambda: clock.advance(2.0) or len(read_starts()) > limit)
        for child in children[:5]:
            os.kill(child, signal.SIGKILL)
        enough = len(read_starts()) + 3 * limit
        eventually(lambda: clock.advance(2.0) or len(read_starts()) > enough)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)

    times = read_starts()
    at_most = max(sum(1 for other in times if start <= other < start + minute * 0.97) for start in times)
    assert at_most <= limit


def _call_until_killed(guard: Governor, file) -> None:  # pragma: no cover - in a child
    with file.open("w", buffering=1) as out:
        while True:
            one = Call(f"{os.getpid()}-{next(_ids)}", 0.05)
            if guard.acquire(one).granted:
                # The time of the grant by the clock of Redis.
                began = redis.client().hget(keys.of_provider("test")[2], one.id)
                if began:
                    out.write(f"{int(began.split()[0]) / 1000}\n")
                guard.report(one, Outcome.OK)
            else:
                time.sleep(0.01)
