"""The relay: the only publisher to Celery, and the only way from a committed transaction to Redis.

No request and no transaction talks to Redis. What they leave after commit (offers, releases, withdrawals) is handed to one thread
per process, which takes what has gathered, makes one admission call, and publishes the grants in one go. When Redis does not
answer, the thread keeps what it has and tries again; when the process dies, recovery offers the work anew from PostgreSQL.

A worker that has just finished gives its slots back itself (`release_and_acquire`) and may get its next activities in the same call.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import redis
from django.db import transaction

from activities import publishing
from activities.admission import Closed, Exchange, Grant, exchange
from activities.admission.exchange import Grants
from tenants import tracing
from tenants.context import APP

logger = logging.getLogger(__name__)

RETRY_SECONDS = (
    0.5  # Between tries while Redis is away. Larger delays the recovery after an outage by as much.
)
KEPT_AT_MOST = (
    50_000  # Beyond it hand-overs are dropped, to be found again by recovery: memory stays bounded.
)

_collected: ContextVar[Exchange | None] = ContextVar("collected", default=None)


def after_commit(what: Exchange) -> None:
    """Hand over once the surrounding transaction has committed; at once when there is none."""
    after_commit_of(lambda: what)


def after_commit_of(find: Callable[[], Exchange]) -> None:
    """As `after_commit`, for what is known only then."""
    gathered = collector()  # of the thread on whose behalf this is, which may not be the one that commits

    def hand_over_now() -> None:
        with collecting_in(gathered):
            hand_over(find())

    transaction.on_commit(hand_over_now, using=APP, robust=True)


def hand_over(what: Exchange) -> None:
    """Give to the relay of this process, or to the worker that collects. Never blocks, never raises."""
    if (cause := tracing.current_context()) and not what.causes:
        what.causes.append(cause)
    gathered = collector()
    if gathered is not None:
        gathered.add(what)
    else:
        _relay.put(what)


def collector() -> Exchange | None:
    """Where the hand-overs of this thread gather; None when they go to the relay."""
    return _collected.get()


@contextmanager
def collecting() -> Iterator[Exchange]:
    """Within the block, hand-overs of this thread gather in the given Exchange instead of going to the relay."""
    gathered = Exchange()
    with collecting_in(gathered):
        yield gathered


@contextmanager
def collecting_in(gathered: Exchange | None) -> Iterator[None]:
    """As `collecting`, in this one, which may be another thread's that waits meanwhile."""
    token = _collected.set(gathered)
    try:
        yield
    finally:
        _collected.reset(token)


def release_and_acquire(what: Exchange, *, roles: Iterable[str] = (), start: int = 0) -> Grants:
    """Exchange from within a worker; returns at most `start` grants of these roles, for it to run itself.

    The other grants are published. When Redis does not answer, the relay keeps trying and nothing is returned.
    """
    with _traced(what):
        try:
            grants = exchange(what, start_roles=roles if start else (), start=start)
        except (Closed, redis.RedisError):
            _relay.put(what)
            return Grants()
        _relay.ask_again(grants.ask_again_seconds)
        publish([grant for grant in grants if not grant.started])
    grants[:] = [grant for grant in grants if grant.started]
    return grants


def grant_waiting() -> int:
    """Grant what waits and may begin, for nobody in particular, and publish it; returns how much. For upkeep.

    Raises `Closed` and the errors of Redis.
    """
    grants = exchange(Exchange(), start_roles=(), start=0)
    _relay.ask_again(grants.ask_again_seconds)
    publish(grants)
    return len(grants)


def _traced(what: Exchange) -> AbstractContextManager[None]:
    """A span after those that this comes from; none when it comes from upkeep."""
    if not what.causes:
        return tracing.NOTHING
    counts = {"orchestrator.offers": len(what.offers), "orchestrator.releases": len(what.releases)}
    return tracing.span("relay", tracing.PRODUCER, attributes=counts, causes=what.causes)


def flush(timeout: float = 5.0) -> bool:
    """Wait until everything handed over so far is through; False when that took longer than `timeout` seconds."""
    return _relay.flush(timeout)


def publish(grants: Sequence[Grant]) -> None:
    """A message for each. When the broker does not answer, they are published again later."""
    if not grants:
        return
    try:
        publishing.publish(grants)
    except Exception:
        # The slots stay held and the grants unstarted, so the leader publishes them again.
        logger.exception(
            "Grants could not be published", extra={"action": "publish_failed", "count": len(grants)}
        )


class _Relay:
    """One thread, what it has still to do, and when it is to ask for what a limit over time has held back."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self.flush, 5.0)

    def _reset(self) -> None:
        self._waiting = Exchange()
        self._changed = threading.Condition()
        self._idle = True  # nothing is waiting to be handed over
        self._asking = False  # of admission, just now
        self._thread: threading.Thread | None = None
        self._ask_at: float | None = None  # by the monotonic clock

    def put(self, what: Exchange) -> None:
        if not what:
            return
        with self._changed:
            if len(self._waiting.offers) + len(self._waiting.releases) < KEPT_AT_MOST:
                self._waiting.add(what)
            self._idle = False
            self._wake()

    def ask_again(self, seconds: float | None) -> None:
        """Exchange again after so long, whether there is something to hand over then or not; None changes nothing."""
        if seconds is None:
            return
        with self._changed:
            at = time.monotonic() + seconds
            self._ask_at = at if self._ask_at is None else min(at, self._ask_at)
            self._wake()

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="relay", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._idle, timeout)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and (self._ask_at is None or self._ask_at > time.monotonic()):
                    self._changed.wait(None if self._ask_at is None else self._ask_at - time.monotonic())
                batch, self._waiting, self._asking = self._waiting, Exchange(), True
                if self._ask_at is not None and self._ask_at <= time.monotonic():
                    self._ask_at = None
            try:
                with _traced(batch):
                    grants = exchange(batch)
                    self.ask_again(grants.ask_again_seconds)
                    publish(grants)
            except (Closed, redis.RedisError) as error:
                self._keep_for_later(batch, error)
                continue
            with self._changed:
                self._asking, self._idle = False, not self._waiting
                self._changed.notify_all()

    def _keep_for_later(self, batch: Exchange, error: Exception) -> None:
        with self._changed:
            self._asking = False
            self._changed.notify_all()
            if not batch:
                return
            batch.add(self._waiting)
            self._waiting = batch
            if len(batch.offers) + len(batch.releases) >= KEPT_AT_MOST:
                batch.drop_offers()
        logger.warning(
            "Admission does not answer", extra={"action": "relay_waits", "reason": type(error).__name__}
        )
        threading.Event().wait(RETRY_SECONDS)


_relay = _Relay()
