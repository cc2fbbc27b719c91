"""Dispatch: claims a granted activity, runs its agent and records the result. Quick activities are handled several at a time.

A message is only a hint. The grant (its slots must still be held) and the claim (a compare-and-set in PostgreSQL) decide whether there is
work. A duplicate, late or forged message fails one of the two checks and has no effect. No transaction is open while the agent works.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, TypeGuard
from uuid import UUID

import redis
from django.conf import settings
from django.db import connections

from activities import provider_batches
from activities.admission import CLAIM_SECONDS, Closed, Exchange, Grant
from activities.admission.exchange import Offer, Release
from activities.combining import Combining
from activities.exceptions import OutOfBudget, OutputUnavailable, RunSuperseded
from activities.execution import request as execution_request
from activities.execution import results
from activities.execution import sessions as execution_sessions
from activities.execution.request import Attempt, Material
from activities.execution.run_links import LinkOfRun
from activities.load_shedding import PROTECTION
from activities.models import Activity, ActivityRun, Wake
from activities.quick_work import Group, HeldGrant, QuickWork, most_together
from activities.run_tokens import RunToken
from activities.submission import NewActivity, Reservation, reserving
from agents import configuration, runner, sessions, skills
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Parked
from agents.exceptions import AgentError, InputUnavailable, PermanentAgentError, ServerAway
from agents.routing import queue_of
from agents.skills import Knowledge
from tenants import clock, outages, request_context, tracing
from tenants.context import tenant_scope
from tenants.identifiers import uuid7
from tenants.sql import Rows

from . import admission, budgets, leases, relay, transitions

logger = logging.getLogger(__name__)

# Messages from the broker are not trusted, because anybody who can write to Redis can push one. Its arguments must be well-formed, the
# grant must be held, and the claim must succeed. A refused message changes nothing and is logged, so that an attack is visible.


LONGEST_GRANT = 100  # characters; real ones have a quarter of that
LONGEST_ROLE = 63


class MalformedMessage(ValueError):
    """The arguments are not those of a dispatch message."""


def read_message(*, tenant: object, activity: object, grant: object, role: object) -> Grant:
    """Return the grant that a message names. Raises `MalformedMessage`."""
    if not isinstance(grant, str) or not 0 < len(grant) <= LONGEST_GRANT:
        raise MalformedMessage("grant")
    if not isinstance(role, str) or not 0 < len(role) <= LONGEST_ROLE:
        raise MalformedMessage("role")
    return Grant(_read_id("activity", activity), _read_id("tenant", tenant), role, grant, started=False)


def refuse_message(why: str, grant: Grant | None = None) -> None:
    """Log a message that no process of ours has sent."""
    ids = {"tenant": str(grant.tenant_id), "activity": str(grant.activity_id)} if grant else {}
    logger.warning("Message refused", extra={"action": "message_refused", "reason": why, **ids})


def note_stale_message(grant: Grant) -> None:
    """Log a message whose grant is not held: a duplicate, a late or a forged one, which cannot be told apart here."""
    logger.info(
        "Message without a grant",
        extra={
            "action": "message_stale",
            "tenant": str(grant.tenant_id),
            "activity": str(grant.activity_id),
        },
    )


def _read_id(name: str, value: object) -> UUID:
    if not isinstance(value, str) or len(value) != 36:
        raise MalformedMessage(name)
    try:
        return UUID(value)
    except ValueError as error:
        raise MalformedMessage(name) from error


def receive(**arguments: object) -> None:
    """Handle a message: run the granted activity that it names. Malformed messages are logged and ignored."""
    try:
        grant = read_message(**arguments)
    except MalformedMessage as error:
        refuse_message(f"malformed {error}")
    else:
        work(grant)


def work(grant: Grant) -> None:
    """Run the granted activity, then those that are granted next, until the message is `ORCHESTRATOR_CONTINUE_SECONDS` old."""
    _replace_broken_connections()
    lease, confirmed_at = leases.current(), time.monotonic()
    if grant.role not in lease.roles:
        # Forged, because the relay never puts a message on the queue of another role. The leader publishes real grants again.
        refuse_message("role_not_served", grant)
    elif not _is_granted(grant):
        note_stale_message(grant)
    else:
        _run_and_continue([HeldGrant(grant, confirmed_at)])


def _run_and_continue(held: list[HeldGrant], *, alone: bool = False) -> None:
    """Run these grants, of one tenant and role, then those that are granted in exchange for their slots, until the message is too old.

    A grant that is run here needs no message. A long agent call is always the last one of its message, so that the broker shows long
    work as such. `alone`: do not share work with the threads for quick work, because they are blocked.
    """
    lease, began, is_at_quick_work = leases.current(), time.monotonic(), False
    most = most_together(lease.concurrency)
    try:
        while held:
            is_quick = not alone and QUICK_WORK.is_quick(held[0].grant)
            if not is_quick and len(held) > 1:
                relay.publish([each.grant for each in held[1:]])
                held = held[:1]
            if is_quick and not is_at_quick_work and not QUICK_WORK.join(held):
                return
            if is_at_quick_work and not is_quick:
                QUICK_WORK.leave()
            is_at_quick_work = is_quick
            if is_quick:
                held += QUICK_WORK.take(held[0].kind, most - len(held))
            with relay.collecting() as changes:
                try:
                    superseded = _run(held, lease, began)
                except Exception:
                    _hand_over_now(changes)  # those of runs that were recorded
                    raise
            confirmed_at = time.monotonic()
            grants = EXCHANGING.do(None, (changes, _seats_for_next(lease, began, most if is_quick else 1)))
            for grant in superseded:
                _offer_if_woken(grant)
            held = _keep_own([HeldGrant(grant, confirmed_at) for grant in grants])
            if is_at_quick_work and not held:
                held = QUICK_WORK.take_or_leave(most)
                is_at_quick_work = bool(held)
    finally:
        if is_at_quick_work:
            QUICK_WORK.leave()


def _hand_over_now(changes: Exchange) -> None:
    """Pass collected changes to the relay instead of sending them with the next exchange of this thread."""
    with relay.collecting_in(None):
        relay.hand_over(changes.take())


def _may_go_on(lease: leases.Lease, message_began: float) -> bool:
    """Whether a thread takes more work than its message names: not if the message is too old or the worker is draining."""
    age = time.monotonic() - message_began
    return age < settings.ORCHESTRATOR_CONTINUE_SECONDS and not lease.draining.is_set()


def _seats_for_next(lease: leases.Lease, message_began: float, most: int) -> int:
    """The number of grants that a thread requests from admission."""
    if not _may_go_on(lease, message_began):
        return 0
    return max(1, min(most, lease.concurrency - lease.active - QUICK_WORK.waiting()))


def _exchange_alone(request: tuple[Exchange, int]) -> list[Grant]:
    changes, seats = request
    grants = relay.release_and_acquire(changes, roles=leases.current().open_roles(), start=seats)
    (OTHERS_WAIT.set if grants.others_wait else OTHERS_WAIT.clear)()
    return grants


def _exchange_shared(requests: Sequence[tuple[Exchange, int]]) -> list[list[Grant]]:
    """Make the exchanges of several threads in one call. Returns the grants for each thread."""
    combined = Exchange()
    for changes, _ in requests:
        combined.add(changes)
    grants = iter(_exchange_alone((combined, sum(seats for _, seats in requests))))
    return [list(islice(grants, seats)) for _, seats in requests]


def _keep_own(held: list[HeldGrant]) -> list[HeldGrant]:
    """Return the grants that this thread runs: those of one tenant and role. Others go to the threads for quick work or to the broker."""
    mine = [each for each in held if each.kind == held[0].kind]
    others = [each for each in held if each.kind != held[0].kind]
    quick = [each for each in others if QUICK_WORK.is_quick(each.grant)]
    QUICK_WORK.leave_to_others(quick)
    relay.publish([each.grant for each in others if each not in quick])
    return mine


def _replace_broken_connections() -> None:
    """Replace only connections that have failed, because testing each one would cost a round trip per message."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()


def _is_granted(grant: Grant) -> bool:
    return grant.started or _slot_is_held(grant)


def _slot_is_held(grant: Grant) -> bool:
    try:
        return admission.start(grant.activity_id, grant.grant)
    except (Closed, redis.RedisError):
        # Nothing may start without a slot. Recovery offers the activity again when admission answers.
        return False


def _run(held: Sequence[HeldGrant], lease: leases.Lease, message_began: float) -> list[Grant]:
    """Run activities of one tenant and role from claim to result, and the steps that follow one immediately.

    Whatever ends a run releases its slot. Returns the grants of superseded runs.
    """
    with ExitStack() as holding:
        holding.enter_context(lease.holding(*(each.run_id for each in held)))
        with PROTECTION.turn(lease, held[0].grant.role) as is_open:
            if not is_open:
                # The host is overloaded. The activities are offered again, to other workers.
                for each in held:
                    _give_back_unless_used(each.grant)
                return [each.grant for each in held]
            began = time.time_ns()
            runs = [_Run(claimed, began) for claimed in _claim_or_give_back(held)]
            if len(runs) == 1:
                runs[0].holding = holding.pop_all()
                return _run_with_following(runs[0], lease, message_began)
            group = Group(runs)
            with QUICK_WORK.watching(group):
                return _call_and_record(group)


def _run_with_following(run: _Run, lease: leases.Lease, message_began: float) -> list[Grant]:
    """Run it, then each step that follows immediately (see `_Following`), until the message is too old."""
    superseded: list[Grant] = []
    next_run: _Run | None = run
    while next_run is not None:
        if _may_go_on(lease, message_began):
            next_run.following = _Following(next_run.claimed, lease)
        following = next_run.following
        try:
            with next_run.holding:
                superseded += _call_and_record(Group([next_run]))
        except Exception:
            if following is not None:
                following.abandon()
            raise
        next_run = following.take_up() if following is not None else None
    return superseded


def _hold(runs: Iterable[_Run]) -> AbstractContextManager[None]:
    return leases.current().holding(*(run.claimed.run.run_id for run in runs))


def _relieve(group: Group) -> None:
    """Run the remaining runs of a group whose thread is blocked by a slow agent. If this thread is blocked too, another one takes over."""
    with group.holding, QUICK_WORK.watching(group):
        for grant in _call_and_record(group):
            _offer_if_woken(grant)


def _call_and_record(group: Group) -> list[Grant]:
    """Call the agents of a group one by one, then record their answers together. The answer of a single run is recorded immediately.

    An error that cannot be recorded is raised after the other runs. Its run then has no thread, and
    `worker.hand_back_unattended` requeues it.
    """
    superseded: list[Grant] = []
    errors: list[Exception] = []
    while True:
        try:
            if (run := group.next()) is not None:
                superseded += _call(run, group)
            elif answered := group.take_answers():
                superseded += _record_together(answered, errors)
            else:
                break
        except Exception as error:  # noqa: BLE001  # raised below
            errors.append(error)
    if errors:
        raise errors[0]
    return superseded


@dataclass(slots=True)
class _Run:
    """A claimed run and the answer of its agent.

    `began`: start of the claim, in nanoseconds since the epoch. `following`: for the step that may follow immediately, if any.
    """

    claimed: _ClaimedRun
    began: int
    answer: Completed | None = None
    following: _Following | None = None
    holding: ExitStack = field(default_factory=ExitStack)  # the lease holds this run until it is closed

    def context(self) -> AbstractContextManager[None]:
        return run_of(self.claimed.row, self.claimed.run.run_id, began=self.began)

    def may_share(self, outcome: AgentResult | AgentError) -> TypeGuard[Completed]:
        """Whether the outcome can be recorded together with others: it neither needs an approval nor wakes another activity."""
        row = self.claimed.row
        return isinstance(outcome, Completed) and row.link_kind is None and not row.requires_approval


def _call(run: _Run, group: Group) -> list[Grant]:
    """Call the agent and record the outcome, or keep it to be recorded with others. Returns the grant if the run was superseded."""
    claimed = run.claimed
    try:
        with run.context():
            try:
                outcome = _outcome(claimed)
            finally:
                seconds = group.end_call()
            QUICK_WORK.times.note((claimed.grant.tenant_id, claimed.grant.role), seconds)
            if not run.may_share(outcome):
                _record(claimed, outcome)
                return []
            if not group.is_alone:
                run.answer = outcome
                group.keep(run)
                return []
            shared = _RecordRequest(run, outcome, relay.collector())
            if tracing.is_on() or not RECORDING.do(claimed.grant.tenant_id, shared):
                _record(claimed, outcome)
    except RunSuperseded:
        return [_note_superseded(claimed)]
    return []


@dataclass(frozen=True, slots=True)
class _RecordRequest:
    """A run that another thread may record. Released slots are added to `changes`, the exchange of the run's own thread."""

    run: _Run
    answer: Completed
    changes: Exchange | None

    @contextmanager
    def context(self) -> Iterator[None]:
        with self.run.context(), relay.collecting_in(self.changes):
            yield


def _record_alone(shared: _RecordRequest) -> bool:
    following = shared.run.following
    if following is not None and following.may_begin():
        following.ask()
    _record(shared.run.claimed, shared.answer, following)
    return True


def _record_shared(shared: Sequence[_RecordRequest]) -> list[bool]:
    """Whether each was recorded. The thread of a refused run records it again alone, which raises the reason."""
    answers = [results.Answer(each.run.claimed.run, each.answer, each.context) for each in shared]
    accepted = results.record_completed_together(answers, is_patient=False)
    return [each.run.claimed.run.run_id in accepted for each in shared]


def _record_together(runs: Sequence[_Run], errors: list[Exception]) -> list[Grant]:
    """Record answers. A refused one is recorded again alone to learn the reason. Errors that cannot be recorded are added to `errors`."""
    superseded: list[Grant] = []
    accepted: set[UUID] = set()
    if len(runs) > 1:
        answers = [results.Answer(run.claimed.run, run.answer, run.context) for run in runs if run.answer]
        try:
            accepted = results.persistently(partial(results.record_completed_together, answers))
        except Exception as error:  # noqa: BLE001  # recording one by one below tells which one is at fault
            facts = {"action": "recorded_alone", "reason": type(error).__name__, "count": len(runs)}
            logger.warning("Results are recorded one by one", extra=facts)
    for run in runs:
        if run.claimed.run.run_id not in accepted and run.answer is not None:
            try:
                with run.context():
                    _record(run.claimed, run.answer)
            except RunSuperseded:
                superseded.append(_note_superseded(run.claimed))
            except Exception as error:  # noqa: BLE001  # the others must still be recorded
                errors.append(error)
    return superseded


def _note_superseded(claimed: _ClaimedRun) -> Grant:
    """Log that another process has ended this run, and release its slot if that has not happened yet."""
    logger.info(
        "Result of a superseded run refused",
        extra={"action": "run_superseded", "run": str(claimed.run.run_id)},
    )
    relay.hand_over(_release_superseded(claimed.grant))
    return claimed.grant


def _release_superseded(grant: Grant) -> Exchange:
    """Return the release of the slot of a superseded run. The slot is free only now, when the agent's call is over."""
    with tenant_scope(grant.tenant_id):
        ActivityRun.objects.for_tenant(grant.tenant_id).filter(
            activity_id=grant.activity_id, grant=grant.grant
        ).exclude(status="running").update(worker_id=None)
    return Exchange(releases=[Release(grant.activity_id, grant.grant)])


def _offer_if_woken(grant: Grant) -> None:
    """Offer an activity that was woken during the call, because admission ignores offers of an activity that holds a slot.

    Call it after the slot was released: a wake that comes later then finds the slot free.
    """
    with tenant_scope(grant.tenant_id):
        # Two queries by key: with a join, or a filter by status or date, PostgreSQL might read everything that waits.
        wakes = Wake.objects.for_tenant(grant.tenant_id).filter(
            activity_id=grant.activity_id, state="pending"
        )
        found = Activity.objects.for_tenant(grant.tenant_id).filter(pk=grant.activity_id)
        is_due = None in wakes.values_list("due_at", flat=True)
        offers = [Offer.of(activity) for activity in found if is_due and activity.status == "created"]
    relay.hand_over(Exchange(offers=offers))


def _give_back_unless_used(grant: Grant, run_id: UUID | None = None, *, is_passed: bool = False) -> None:
    """Release the slot of a grant that could not be claimed. `is_passed`: the slot was passed on and not named by any message.

    If another delivery of the same message was first, its run releases the slot. If our own claim (`run_id`) succeeded but its answer was
    lost or late, nobody works on that run, so it is requeued.
    """
    with tenant_scope(grant.tenant_id):
        runs = ActivityRun.objects.for_tenant(grant.tenant_id)
        used = runs.filter(activity_id=grant.activity_id, grant=grant.grant).first()
        if used is not None and used.pk == run_id:
            lost = ServerAway("The answer to the claim was lost, or came too late.", retry_after=0.0)
            with suppress(RunSuperseded):
                results.record_failed(RunToken(grant.tenant_id, grant.activity_id, run_id, used.fence), lost)
            return
        activity = Activity.objects.for_tenant(grant.tenant_id).filter(
            pk=grant.activity_id, agent_role=grant.role
        )
        forged = used is None and not is_passed and not activity.exists()
    if forged:
        # The slot belongs to the real message, which is still to come.
        refuse_message("forged", grant)
    elif used is None:
        relay.hand_over(Exchange(releases=[Release(grant.activity_id, grant.grant, unused=True)]))


@dataclass(frozen=True, slots=True)
class _ClaimedRun:
    """A claimed activity with everything that its request is built from."""

    row: Any
    run: RunToken
    role: configuration.RoleSettings
    knowledge: Knowledge
    grant: Grant


def _claim_or_give_back(held: Sequence[HeldGrant]) -> list[_ClaimedRun]:
    """Claim the granted activities. Releases the slots of those that could not be claimed."""
    is_shared = len(held) == 1 and not tracing.is_on()
    claimed = CLAIMING.do(held[0].kind, held[0]) if is_shared else _claim_persistently(held)
    run_ids = {run.run.run_id for run in claimed}
    for each in held:
        if each.run_id not in run_ids:
            results.persistently(partial(_give_back_unless_used, each.grant, each.run_id))
    return claimed


def _claim_shared(held: Sequence[HeldGrant]) -> list[list[_ClaimedRun]]:
    claimed = {run.run.run_id: [run] for run in _claim(held, is_patient=False)}
    return [claimed.get(each.run_id, []) for each in held]


def _claim_persistently(held: Sequence[HeldGrant]) -> list[_ClaimedRun]:
    try:
        return results.persistently(lambda: _claim(held))
    except AgentError as error:
        facts = {"action": "claim_failed", "role": held[0].grant.role, "reason": str(error)}
        logger.warning("Role cannot run", extra=facts)
    except OutOfBudget as error:
        # The whole transaction was rolled back, so each is claimed again alone.
        if len(held) > 1:
            return [claimed for each in held for claimed in _claim_persistently([each])]
        grant, refusal = held[0].grant, error
        results.persistently(lambda: budgets.postpone(grant.tenant_id, grant.activity_id, refusal))
    return []


def _claim(held: Sequence[HeldGrant], *, is_patient: bool = True) -> list[_ClaimedRun]:
    """Claim in one transaction, and return the claimed runs whose slots are still held. Raises `OutOfBudget`."""
    with tenant_scope(held[0].grant.tenant_id, is_patient=is_patient):
        if not (held := _with_slots(held)):
            return []
        claims = _begin_claims(held)
        if claims.role.budgeted:
            for row in claims.rows.fetch():
                budgets.reserve(row, row.run, execution_request.role_for(claims.role, row.agent_options))
    return claims.fetch()


@dataclass(frozen=True, slots=True)
class _Claims:
    """Claims whose statement is sent together with the next one of the transaction, at the latest with its commit."""

    held: Sequence[HeldGrant]
    role: configuration.RoleSettings
    knowledge: Knowledge
    briefing: str
    rows: Rows

    def fetch(self) -> list[_ClaimedRun]:
        """Return the claimed runs whose slots are still held. Call it after the commit."""
        rows = {row.run: row for row in self.rows.fetch()}
        held = _with_slots([each for each in self.held if each.run_id in rows])
        return [self._run_of(rows[each.run_id], each.grant) for each in held]

    def _run_of(self, row: Any, grant: Grant) -> _ClaimedRun:
        signs = grant.role if self.role.adapter.options.get("signed_callbacks") is True else ""
        session = execution_sessions.resume(row)
        return _ClaimedRun(
            row=row,
            run=RunToken(row.tenant_id, row.id, row.run, row.fence, self.briefing, session, signs),
            role=execution_request.role_for(self.role, row.agent_options),
            knowledge=self.knowledge,
            grant=grant,
        )


def _begin_claims(held: Sequence[HeldGrant], created: Reservation | None = None) -> _Claims:
    """Add the claims to the caller's `tenant_scope`. Raises `AgentError` if the role cannot run.

    `created`: holds the only activity, which this transaction creates.
    """
    tenant_id, agent_role = held[0].kind
    role = configuration.settings_for(tenant_id, agent_role)
    knowledge = execution_request.knowledge_of(tenant_id, agent_role, role)
    briefing = sessions.briefing_with(role.briefing, knowledge.versions)
    by = transitions.Claimant(
        role=agent_role, worker_id=leases.current().worker_id, timeout_seconds=role.timeout_seconds,
        version=role.adapter.version or "", briefing=briefing, day=clock.today(),
    )  # fmt: skip
    rows = (
        created.claim({"run": held[0].run_id, "grant": held[0].grant.grant, **by.parameters()})
        if created
        else None
    )
    if rows is None:
        claims = [transitions.Claim(each.grant.activity_id, each.run_id, each.grant.grant) for each in held]
        rows = transitions.claim(claims, tenant_id=tenant_id, by=by)
    return _Claims(held, role, knowledge, briefing, rows)


def _with_slots(held: Sequence[HeldGrant]) -> list[HeldGrant]:
    """Return the grants whose slots are still held.

    Admission may withdraw a slot without a run `SETTLE_SECONDS` after it has confirmed it, and a rebuild may lose it. So a claim that
    took `CLAIM_SECONDS`, because of a locked row or an outage, confirms its slot again before any agent is called.
    """
    still_held = []
    for each in held:
        if time.monotonic() - each.confirmed_at <= CLAIM_SECONDS or _slot_is_held(each.grant):
            still_held.append(each)
        else:
            note_stale_message(each.grant)
    return still_held


class _Following:
    """The step that follows a run immediately, on the same slot: the transaction that ends the run also claims the step, without a message.

    Admission passes the slot on only while no other work waits, so the step overtakes nobody. It is asked before the transaction begins,
    and the transaction only checks whether the answer has arrived, so no transaction waits for Redis. In all other cases the step is
    offered as usual and the slot is released.
    """

    def __init__(self, before: _ClaimedRun, lease: leases.Lease) -> None:
        self._before, self._lease = before, lease
        self._activity_id, self._run_id = uuid7(), uuid7()
        self._requested_at = 0.0
        self._slot: admission.PassedSlot | None = None
        self._claims: _Claims | None = None  # of the last try of the transaction
        self._was_claimed = False  # in any try
        self._is_recorded = False
        self._holding = ExitStack()

    def may_begin(self) -> bool:
        """Whether the end of the run may begin a step that needs no more than the same slot."""
        row, role = self._before.row, self._before.role
        return (
            row.step is not None
            and (row.pipeline_id, row.step) not in LAST_STEPS
            and not (role.budgeted or OTHERS_WAIT.is_set())
            # The group of such work depends on its parameters, which are not known yet.
            and role.adapter.adapter != "cli"
            and row.agent_role in self._lease.open_roles()
        )

    def ask(self) -> None:
        """Ask admission to pass the slot on, without waiting for the answer."""
        self._requested_at = time.monotonic()
        with suppress(redis.RedisError):
            grant = self._before.grant
            self._slot = admission.PassedSlot(grant.activity_id, grant.grant, self._activity_id)

    def record(self, end: Callable[[Callable[[], AbstractContextManager[None]]], object]) -> None:
        """Call `end`, which records the result in a transaction and enters the given context within it. May be repeated."""
        self._claims = None
        end(self._claiming)
        self._is_recorded = True

    @contextmanager
    def _claiming(self) -> Iterator[None]:
        with reserving(self._activity_id) as reservation:
            yield
        self._note_last(not reservation.begun)
        if self._slot is None or not self._is_expected(reservation.begun):
            return
        grant = self._slot.grant_so_far()
        if not grant or time.monotonic() - self._requested_at > CLAIM_SECONDS:
            return
        held = HeldGrant(self._passed(grant), self._requested_at, self._run_id)
        with suppress(AgentError):
            if not configuration.settings_for(*held.kind).budgeted:
                self._holding.enter_context(self._lease.holding(self._run_id))
                self._was_claimed = True
                self._claims = _begin_claims([held], reservation)

    def _note_last(self, is_last: bool) -> None:
        step = (self._before.row.pipeline_id, self._before.row.step)
        if not is_last:
            LAST_STEPS.discard(step)
        elif len(LAST_STEPS) < MOST_LAST_STEPS:
            LAST_STEPS.add(step)

    def _is_expected(self, begun: Sequence[NewActivity]) -> bool:
        """Whether exactly one step began, and it needs exactly the slot that was requested."""
        if len(begun) != 1 or begun[0].id != self._activity_id:
            return False
        step, row = begun[0], self._before.row
        alike = (step.agent_role, step.pipeline_run_id, step.priority) == (
            row.agent_role, row.pipeline_run_id, row.priority,
        )  # fmt: skip
        return alike and not (step.group_key or step.files or step.not_before)

    def _passed(self, grant: str) -> Grant:
        before = self._before.grant
        return Grant(self._activity_id, before.tenant_id, before.role, grant, started=True)

    def take_up(self) -> _Run | None:
        """Return the claimed run of the step, or None if the step is offered as usual. Releases the slot if it is not used."""
        if self._slot is None:
            return None
        grant = self._slot.grant()
        claimed = self._claims.fetch() if self._claims and self._is_recorded else []
        if not claimed:
            self._holding.close()
            if self._was_claimed:
                # The claim was rolled back, took too long, or its answer was lost.
                held = self._passed(grant or "")
                results.persistently(partial(_give_back_unless_used, held, self._run_id, is_passed=True))
            elif grant != "":
                relay.hand_over(Exchange(releases=[Release(self._activity_id, grant or "", unused=True)]))
            return None
        if (changes := relay.collector()) is not None:
            changes.drop_offer(self._activity_id)
            changes.drop_release(self._before.grant.activity_id)
            _hand_over_now(changes)  # because the run that follows may take long
        return _Run(claimed[0], time.time_ns(), holding=self._holding)

    def abandon(self) -> None:
        """Forget the step, because the run before it could not be recorded. The leader's audit releases a slot that was passed on."""
        self._holding.close()
        if self._slot is not None:
            self._slot.grant()  # reads the answer, so that the connection goes back to its pool


def _outcome(claimed: _ClaimedRun) -> AgentResult | AgentError:
    """Return the result of the agent, or the error of the run. Raises `RunSuperseded`."""
    try:
        with skills.write_files(_request(claimed), claimed.knowledge) as request:
            return runner.run_agent(request, link=LinkOfRun(claimed.run))
    except RunSuperseded:
        raise
    except Exception as error:  # noqa: BLE001  # every error becomes one of the run
        return _error_of(error, claimed.run)


def _record(
    claimed: _ClaimedRun, outcome: AgentResult | AgentError, following: _Following | None = None
) -> None:
    """Record the outcome in a transaction of its own. Raises `RunSuperseded`."""
    if not isinstance(outcome, AgentError):
        try:
            _record_answer(claimed, outcome, following)
            return
        except RunSuperseded:
            raise
        except Exception as error:  # noqa: BLE001  # every error becomes one of the run
            outcome = _error_of(error, claimed.run)
    failure = outcome
    tracing.fail(failure.error_code)
    results.persistently(lambda: results.record_failed(claimed.run, failure))


def _error_of(error: Exception, run: RunToken) -> AgentError:
    """Return the error with which the run ends. Re-raises `error` if it may be temporary."""
    if isinstance(error, AgentError):
        return error
    if outages.is_away(error):
        # Not the fault of the work: the run is requeued as soon as that can be recorded.
        return ServerAway("A server that the run needs went away.")
    if outages.may_pass(error):
        raise error  # The run has no thread now, so `worker.hand_back_unattended` requeues it.
    # A bug of ours, or an answer that the database refuses. People see a failed activity, while an open run would only repeat the error.
    logger.error(
        "Run broke inside the engine", exc_info=error, extra={"action": "run_broke", "run": str(run.run_id)}
    )
    return PermanentAgentError(f"Internal error: {type(error).__name__}", code="internal_error")


def _record_answer(claimed: _ClaimedRun, result: AgentResult, following: _Following | None) -> None:
    run, needs_approval = claimed.run, claimed.row.requires_approval
    if isinstance(result, Parked):
        results.persistently(lambda: provider_batches.park(run, result, claimed.row))
        if claimed.row.group_key or claimed.row.files:
            _leave_seat(
                claimed.grant
            )  # It keeps its other slots, because work on its group or files must wait for it.
        return
    if isinstance(result, Accepted):
        results.persistently(lambda: execution_sessions.saw(run, result.session_id))
        results.persistently(lambda: results.record_accepted(run))
        _leave_seat(claimed.grant)
        return
    end = partial(
        results.record_completed,
        run,
        result,
        needs_approval=needs_approval,
        has_parent=claimed.row.link_kind is not None,
        of_step=claimed.row.step is not None,
    )
    try:
        results.persistently(
            end if following is None else lambda: following.record(lambda context: end(context=context))
        )
    except RunSuperseded:
        results.persistently(lambda: results.note_late(run, result))
        raise


def _leave_seat(grant: Grant) -> None:
    try:
        admission.accept(grant.activity_id, grant.grant)
    except (Closed, redis.RedisError):
        # The leader's audit releases the seat, because an accepted run has no worker.
        logger.warning("Seat not given back yet", extra={"action": "accept_waits"})


def _request(claimed: _ClaimedRun) -> AgentRequest:
    row, role = claimed.row, claimed.role
    material = execution_request.at_hand(row) if row.started else _fetch_inputs(claimed)
    timeout = row.timeout_seconds or role.timeout_seconds
    attempt = Attempt(
        token=claimed.run, number=row.attempts, wakes=row.wakes, role=role, knowledge=claimed.knowledge, timeout_seconds=timeout,
        deadline=clock.now() + timedelta(seconds=timeout),
    )  # fmt: skip
    return provider_batches.with_history(execution_request.build(row, attempt, material), row)


def _fetch_inputs(claimed: _ClaimedRun) -> Material:
    """Read the outputs that are only in MongoDB, then start the run. No transaction is open meanwhile, because MongoDB may be slow."""
    row, run = claimed.row, claimed.run
    try:
        material = execution_request.fetch(row, row.wakes)
    except OutputUnavailable as error:
        raise InputUnavailable(str(error), code=error.code) from error
    for reference in material.missing:
        raise PermanentAgentError(
            f"The output {reference} that this works on does not exist.", code="input_missing"
        )
    with tenant_scope(row.tenant_id):
        transitions.start(run)
    return material


# The context of a run in a worker: ids for its log lines, and the span of its trace.


@contextmanager
def run_of(row: Any, run_id: UUID, *, began: int) -> Iterator[None]:
    """Enter the context of a run. `row`: the claimed activity. `began`: start of the claim, in nanoseconds since the epoch.

    The run continues the trace of its latest wake, if that is recent. Its other wakes and the message are linked.
    """
    causes = [wake["provenance"] for wake in row.wakes if wake["provenance"]]
    ids = {"tenant": str(row.tenant_id), "activity": str(row.id), "run": str(run_id), "role": row.agent_role}
    with request_context.of_work(causes, **ids), tracing.span(
        f"run {row.agent_role}", tracing.CONSUMER,
        attributes=_attributes(row, ids) if tracing.is_on() else None,
        causes=causes[-1:], links=[*causes[:-1], *tracing.arrival()], began=began,
    ):  # fmt: skip
        yield


def _attributes(row: Any, ids: dict[str, str]) -> dict[str, Any]:
    return {
        **{f"orchestrator.{name}": value for name, value in ids.items()},
        "orchestrator.attempt": row.attempts,
        "orchestrator.wake_reason": row.reason,
        "orchestrator.request_id": request_context.current().get(request_context.REQUEST, ""),
        "messaging.system": "celery",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue_of(row.agent_role),
    }


# Threads with one run each share work: one statement for several claims or answers, one call for several exchanges.
CLAIMING = Combining(together=_claim_shared, alone=lambda held: _claim_persistently([held]))
EXCHANGING = Combining(together=_exchange_shared, alone=_exchange_alone)
RECORDING = Combining(together=_record_shared, alone=_record_alone)
#: Set while other work waits, according to the last answer of admission. Then no step follows immediately.
OTHERS_WAIT = threading.Event()
#: Steps (pipeline, name) whose last end began no other step. Admission is not asked to pass their slots on.
LAST_STEPS: set[tuple[UUID | None, str | None]] = set()
MOST_LAST_STEPS = 10_000
QUICK_WORK = QuickWork(begin=partial(_run_and_continue, alone=True), relieve=_relieve, hold=_hold)
