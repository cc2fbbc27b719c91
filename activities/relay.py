"""The relay: the only publisher to Celery, and the only way from a committed transaction to Redis.

Requests and transactions never talk to Redis, except to put a pause in force (`intake`). After a commit they hand their changes (offers,
releases, withdrawals) to one thread per process. The thread sends all pending changes in one admission call and publishes the grants
together. While Redis does not answer, it keeps the changes and tries again. If the process dies, recovery offers the work again from
PostgreSQL.

A worker that has finished a run releases the slots itself (`release_and_acquire`) and may acquire its next activities in the same call.
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

RETRY_SECONDS = 0.5  # Between tries while Redis is away. A larger value delays the recovery after an outage.
# Further changes are dropped, so that memory stays bounded. Recovery finds the work again.
KEPT_AT_MOST = 50_000

_collected: ContextVar[Exchange | None] = ContextVar("collected", default=None)


def after_commit(changes: Exchange) -> None:
    """Hand over the changes when the current transaction has committed, or immediately if there is none."""
    after_commit_of(lambda: changes)


def after_commit_of(changes: Callable[[], Exchange]) -> None:
    """As `after_commit`, for changes that are only known after the commit."""
    collected = collector()  # of the thread that records the run, which may not be the one that commits

    def hand_over_changes() -> None:
        with collecting_in(collected):
            hand_over(changes())

    transaction.on_commit(hand_over_changes, using=APP, robust=True)


def hand_over(changes: Exchange) -> None:
    """Give the changes to the relay of this process, or to the worker thread that collects them. Never blocks, never raises."""
    if (cause := tracing.current_context()) and not changes.causes:
        changes.causes.append(cause)
    collected = collector()
    if collected is not None:
        collected.add(changes)
    else:
        _relay.put(changes)


def hand_over_now(changes: Exchange) -> None:
    """Hand over what was collected so far, instead of sending it with the next exchange of this thread."""
    with collecting_in(None):
        hand_over(changes.take())


def collector() -> Exchange | None:
    """Return the Exchange that collects the changes of this thread; None if they go to the relay."""
    return _collected.get()


@contextmanager
def collecting() -> Iterator[Exchange]:
    """Within the block, changes that this thread hands over are collected in the Exchange instead of going to the relay."""
    collected = Exchange()
    with collecting_in(collected):
        yield collected


@contextmanager
def collecting_in(collected: Exchange | None) -> Iterator[None]:
    """As `collecting`, in the given Exchange. It may belong to another thread that waits for this one."""
    token = _collected.set(collected)
    try:
        yield
    finally:
        _collected.reset(token)


def release_and_acquire(changes: Exchange, *, roles: Iterable[str] = (), start: int = 0) -> Grants:
    """Send changes from a worker thread. Returns at most `start` grants of these roles, which the worker must run.

    Other grants are published. If Redis does not answer, the relay keeps trying and no grant is returned.
    """
    with _traced(changes):
        try:
            grants = exchange(changes, start_roles=roles if start else (), start=start)
        except (Closed, redis.RedisError):
            _relay.put(changes)
            return Grants()
        _relay.ask_again(grants.ask_again_seconds)
        publish([grant for grant in grants if not grant.started])
    grants[:] = [grant for grant in grants if grant.started]
    return grants


def grant_waiting() -> int:
    """Grant waiting work that may begin, and publish it. Returns the number of grants. For the leader.

    Raises `Closed` and the errors of Redis.
    """
    grants = exchange(Exchange(), start_roles=(), start=0)
    _relay.ask_again(grants.ask_again_seconds)
    publish(grants)
    return len(grants)


def _traced(changes: Exchange) -> AbstractContextManager[None]:
    """A span that follows the spans which caused the changes; no span for changes of the leader."""
    if not changes.causes:
        return tracing.NOTHING
    counts = {"orchestrator.offers": len(changes.offers), "orchestrator.releases": len(changes.releases)}
    return tracing.span("relay", tracing.PRODUCER, attributes=counts, causes=changes.causes)


def flush(timeout: float = 5.0) -> bool:
    """Wait until all changes handed over so far were sent. Returns False after `timeout` seconds."""
    return _relay.flush(timeout)


def publish(grants: Sequence[Grant]) -> None:
    """Publish a message for each grant. If the broker does not answer, the leader publishes them again later."""
    if not grants:
        return
    try:
        publishing.publish(grants)
    except Exception:
        # The grants stay unstarted and hold their slots, so the leader publishes them again.
        logger.exception(
            "Grants could not be published", extra={"action": "publish_failed", "count": len(grants)}
        )


class _Relay:
    """One thread, the changes that it has to send, and when it asks again for work that a rate limit holds back."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self.flush, 5.0)

    def _reset(self) -> None:
        self._waiting = Exchange()
        self._changed = threading.Condition()
        self._idle = True  # no changes are pending
        self._asking = False  # an admission call is under way
        self._thread: threading.Thread | None = None
        self._ask_at: float | None = None  # by the monotonic clock

    def put(self, changes: Exchange) -> None:
        if not changes:
            return
        with self._changed:
            if self._waiting.size < KEPT_AT_MOST:
                self._waiting.add(changes)
            self._idle = False
            self._wake()

    def ask_again(self, seconds: float | None) -> None:
        """Call admission again after so many seconds, even without changes. None does nothing."""
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
            if batch.size >= KEPT_AT_MOST:
                batch.drop_offers()
        logger.warning(
            "Admission does not answer", extra={"action": "relay_waits", "reason": type(error).__name__}
        )
        threading.Event().wait(RETRY_SECONDS)


_relay = _Relay()
