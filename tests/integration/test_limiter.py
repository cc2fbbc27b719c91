"""Token buckets in Redis: limits, repeated calls, and failures of Redis."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tenants import keys, redis
from tenants.exceptions import LimiterUnavailable
from tenants.limiter import Breaker, Bucket
from tests import redis_clock
from tests.frozen_server import frozen_server, send_limits_to
from tests.redis_clock import RedisClock

SLOW = 0.001  # units per second


@pytest.fixture
def bucket() -> Bucket:
    return Bucket("test", rate=SLOW, burst=10)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch, database: None) -> RedisClock:
    return redis_clock.stop_limiter(monkeypatch)


def test_a_bucket_that_was_never_used_is_full(bucket):
    decision = bucket.take(0)

    assert decision.allowed
    assert decision.remaining == 10


def test_taking_more_than_is_left_is_refused_and_takes_nothing(bucket):
    bucket.take(8)

    refused = bucket.take(3)

    assert not refused.allowed
    assert bucket.take(2).allowed


def test_a_refusal_says_when_enough_units_will_be_available():
    bucket = Bucket("test", rate=2, burst=10)
    bucket.take(10)

    refused = bucket.take(4)

    assert refused.retry_after == 2.0


def test_a_bucket_refills_at_its_rate_up_to_the_burst(clock):
    bucket = Bucket("test", rate=1, burst=100)
    bucket.take(100)

    clock.advance(30)
    after_a_while = bucket.take(0).remaining
    clock.advance(3600)
    after_long = bucket.take(0).remaining

    assert after_a_while == 30
    assert after_long == 100


def test_refused_takes_do_not_delay_the_refill(clock):
    bucket = Bucket("test", rate=1, burst=100)
    bucket.take(100)

    clock.advance(0.5)
    assert not bucket.take(1).allowed
    clock.advance(0.5)
    assert bucket.take(1).allowed


def test_a_cost_above_the_burst_waits_for_a_full_bucket_and_leaves_a_debt(bucket, clock):
    allowed = bucket.take(25)

    assert allowed.allowed
    assert allowed.remaining == -15
    assert not bucket.take(1).allowed
    clock.advance(16 / SLOW)
    assert bucket.take(1).allowed


def test_a_clock_that_was_set_back_does_not_stop_the_refill(clock):
    bucket = Bucket("test", rate=1, burst=100)
    bucket.take(100)
    clock.advance(-3600)

    bucket.take(50)  # refused, which stores the new time
    clock.advance(60)

    assert bucket.take(50).allowed


def test_a_repeated_take_with_the_same_id_takes_once(bucket):
    first = bucket.take(6, take_id="call-1")
    again = bucket.take(6, take_id="call-1")

    assert (first.allowed, again.allowed) == (True, True)
    assert bucket.take(0).remaining == 4


def test_the_unused_part_of_a_take_is_given_back_once(bucket):
    bucket.take(6, take_id="call-1")

    assert bucket.give_back(5, take_id="call-1")
    assert not bucket.give_back(5, take_id="call-1")
    assert bucket.take(0).remaining == 9


def test_units_used_above_the_estimate_are_charged_afterwards(bucket):
    bucket.take(6, take_id="call-1")
    kept_at_first = redis.client().ttl(keys.bucket(bucket.name))

    bucket.give_back(-7, take_id="call-1")

    assert bucket.take(0).remaining == -3
    # A key that expires before the bucket is full would cancel the debt.
    kept = redis.client().ttl(keys.bucket(bucket.name))
    assert (kept_at_first, kept) == (pytest.approx(6 / SLOW, abs=2), pytest.approx(13 / SLOW, abs=2))


def test_what_was_refilled_since_a_take_counts_when_its_rest_is_given_back(clock):
    bucket = Bucket("test", rate=1, burst=100)
    bucket.take(100, take_id="call-1")
    clock.advance(10)

    bucket.give_back(20, take_id="call-1")

    assert bucket.take(0).remaining == 30


def test_giving_back_does_not_fill_a_bucket_above_its_burst(bucket):
    bucket.take(2, take_id="call-1")

    bucket.give_back(50, take_id="call-1")

    assert bucket.take(0).remaining == 10


def test_nothing_is_given_back_for_an_unknown_take(bucket):
    bucket.take(6)

    assert not bucket.give_back(6, take_id="somebody-elses")
    assert bucket.take(0).remaining == 4


def test_a_changed_limit_applies_to_the_next_take():
    Bucket("test", rate=SLOW, burst=10).take(1)

    lowered = Bucket("test", rate=SLOW, burst=3)

    assert lowered.take(3).allowed
    assert not lowered.take(1).allowed


def test_concurrent_takes_get_at_most_the_burst():
    bucket = Bucket("test", rate=SLOW, burst=50)

    with ThreadPoolExecutor(max_workers=8) as pool:
        allowed = sum(decision.allowed for decision in pool.map(lambda _: bucket.take(), range(200)))

    assert allowed == 50


def test_every_key_has_the_prefix_and_expires(bucket, settings):
    bucket.take(1, take_id="call-1")
    bucket.give_back(1, take_id="call-1")
    bucket.take(1, take_id="call-2")

    client = redis.client()
    limiter_keys = list(client.scan_iter(match=f"{settings.ORCHESTRATOR_REDIS_PREFIX}*"))
    assert len(limiter_keys) == 2
    assert all(client.ttl(key) > 0 for key in limiter_keys)


def test_after_a_wipe_of_redis_buckets_are_full_and_scripts_are_loaded_again(bucket):
    bucket.take(10)

    client = redis.client()
    client.script_flush()
    client.unlink(keys.bucket(bucket.name))

    assert bucket.take(10).allowed


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_an_invalid_rate_or_burst_is_refused(rate, burst):
    with pytest.raises(ValueError, match="above 0"):
        Bucket("test", rate=rate, burst=burst)


def test_a_negative_cost_is_refused(bucket):
    with pytest.raises(ValueError, match="give_back"):
        bucket.take(-1)


def test_a_frozen_redis_raises_an_error_after_one_timeout(monkeypatch):
    with frozen_server() as server:
        send_limits_to(server, monkeypatch)
        with pytest.raises(LimiterUnavailable, match="TimeoutError"):
            Bucket("test", rate=1, burst=1, timeout_seconds=0.05).take()

    assert len(server.accepted) == 1  # no repetition, which could take twice


def test_an_unreachable_redis_raises_an_error(settings):
    with socket.create_server(("127.0.0.1", 0)) as free:
        settings.REDIS_URL = f"redis://127.0.0.1:{free.getsockname()[1]}/0"

    with pytest.raises(LimiterUnavailable, match="ConnectionError"):
        Bucket("test", rate=1, burst=1).take()


def test_a_connection_that_the_server_closed_is_replaced_without_an_error(bucket):
    bucket.take()
    client = redis.client()
    before = client.client_id()
    client.client_kill_filter(skipme=False, _id=str(before))

    assert bucket.take().allowed
    assert client.client_id() != before


def test_a_breaker_stays_open_for_its_time_and_can_be_reset():
    breaker = Breaker(seconds=3600)
    assert not breaker.is_open()

    breaker.trip()
    assert breaker.is_open()

    breaker.reset()
    assert not breaker.is_open()


def test_clients_with_equal_timeouts_share_their_connections():
    assert redis.client() is redis.client()
    assert redis.client(timeout_seconds=0.05) is not redis.client()


def test_a_forked_child_has_its_own_connections():
    parents, connection = redis.client(), redis.client().client_id()

    child = os.fork()
    if child == 0:
        has_own_connection = redis.client() is not parents and redis.client().client_id() != connection
        os._exit(0 if has_own_connection else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert redis.client().client_id() == connection
