"""Dispatch: claims a granted activity, runs its agent and records the result. Quick activities are handled several at a time.

A message is only a hint. The grant (its slots must still be held) and the claim (a compare-and-set in PostgreSQL) decide whether there is
work. A duplicate, late or forged message fails one of the two checks and has no effect. No transaction is open while the agent works.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any, TypeGuard
from uuid import UUID

import redis
from django.conf import settings
from django.db import connections

from activities import admission, leases, provider_batches, relay, sessions, transitions
from activities.admission import Closed, Exchange, Grant
from activities.admission.exchange import Offer, Release
from activities.combining import Combining
from activities.exceptions import OutputUnavailable, RunSuperseded
from activities.execution import following_step, results
from activities.execution import request as execution_request
from activities.execution.claims import (
    ClaimedRun,
    claim_or_give_back,
    give_back_unless_used,
    is_granted,
    note_stale_message,
    refuse_message,
)  # fmt: skip
from activities.execution.following_step import FollowingStep
from activities.execution.request import Attempt, Material
from activities.execution.run_links import LinkOfRun
from activities.load_shedding import PROTECTION
from activities.models import Activity, ActivityRun, Wake
from activities.quick_work import Group, HeldGrant, QuickWork, most_together
from activities.run_tokens import RunToken
from agents import runner, skills
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Parked
from agents.exceptions import AgentError, InputUnavailable, PermanentAgentError, ServerAway
from agents.response_parser import InvalidAnswer
from agents.routing import queue_of
from tenants import clock, outages, request_context, tracing
from tenants.context import tenant_scope

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
    elif not is_granted(grant):
        note_stale_message(grant)
    else:
        _run_and_continue([HeldGrant(grant, confirmed_at)])


def _run_and_continue(held: list[HeldGrant], *, alone: bool = False) -> None:
    """Run these grants, of one tenant and role, then those that are granted in exchange for their slots, until the message is too old.

    A grant that is run here needs no message. A long agent call is always the last one of its message, so that the broker shows long
    work as such. `alone`: do not share work with the threads for quick work, because they are blocked.
    """
    lease, began = leases.current(), time.monotonic()
    most = most_together(lease.concurrency)
    with QUICK_WORK.seat() as seat:
        while held:
            is_quick = not alone and QUICK_WORK.is_quick(held[0].grant)
            if is_quick:
                if not seat.take(held):
                    return
                held += QUICK_WORK.take(held[0].kind, most - len(held))
            else:
                seat.leave()
                relay.publish([each.grant for each in held[1:]])
                held = held[:1]
            with relay.collecting() as changes:
                try:
                    superseded = _run(held, lease, began)
                except Exception:
                    relay.hand_over_now(changes)  # those of runs that were recorded
                    raise
            confirmed_at = time.monotonic()
            grants = EXCHANGING.do(None, (changes, _seats_for_next(lease, began, most if is_quick else 1)))
            for grant in superseded:
                _offer_if_woken(grant)
            held = _keep_own([HeldGrant(grant, confirmed_at) for grant in grants]) or seat.next_grants(most)


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
    (following_step.OTHERS_WAIT.set if grants.others_wait else following_step.OTHERS_WAIT.clear)()
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


def _run(held: Sequence[HeldGrant], lease: leases.Lease, message_began: float) -> list[Grant]:
    """Run activities of one tenant and role from claim to result, and the steps that follow one immediately.

    Whatever ends a run releases its slot. Returns the grants of superseded runs.
    """
    with ExitStack() as holding:
        holding.enter_context(lease.holding(*(each.run_id for each in held)))
        with PROTECTION.turn(lease) as is_open:
            if not is_open:
                # The host is overloaded. The activities are offered again, to other workers.
                for each in held:
                    give_back_unless_used(each.grant)
                return [each.grant for each in held]
            began = time.time_ns()
            runs = [_Run(claimed, began) for claimed in claim_or_give_back(held)]
            if len(runs) == 1:
                runs[0].holding = holding.pop_all()
                return _run_with_following(runs[0], lease, message_began)
            group = Group(runs)
            with QUICK_WORK.watching(group):
                return _call_and_record(group)


def _run_with_following(run: _Run, lease: leases.Lease, message_began: float) -> list[Grant]:
    """Run it, then each step that follows immediately (see `following_step`), until the message is too old."""
    superseded: list[Grant] = []
    next_run: _Run | None = run
    while next_run is not None:
        if _may_go_on(lease, message_began):
            next_run.following = FollowingStep(next_run.claimed, lease)
        following = next_run.following
        try:
            with next_run.holding:
                superseded += _call_and_record(Group([next_run]))
        except Exception:
            if following is not None:
                following.abandon()
            raise
        taken_up = following.take_up() if following is not None else None
        next_run = _Run(taken_up[0], time.time_ns(), holding=taken_up[1]) if taken_up else None
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

    claimed: ClaimedRun
    began: int
    answer: Completed | None = None
    following: FollowingStep | None = None
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


def _note_superseded(claimed: ClaimedRun) -> Grant:
    """Log that another process has ended this run, and release its slot if that has not happened yet."""
    logger.info(
        "Result of a superseded run refused",
        extra={"action": "run_superseded", "run": str(claimed.run.run_id)},
    )
    # The slot is free only now, when the agent's call is over.
    grant = claimed.grant
    with tenant_scope(grant.tenant_id):
        runs = ActivityRun.objects.for_tenant(grant.tenant_id)
        ended = runs.filter(activity_id=grant.activity_id, grant=grant.grant).exclude(status="running")
        ended.update(worker_id=None)
    relay.hand_over(Exchange(releases=[Release(grant.activity_id, grant.grant)]))
    return grant


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


def _outcome(claimed: ClaimedRun) -> AgentResult | AgentError:
    """Return the result of the agent, or the error of the run. Raises `RunSuperseded`."""
    try:
        with skills.write_files(_request(claimed), claimed.knowledge) as request:
            return runner.run_agent(request, link=LinkOfRun(claimed.run))
    except RunSuperseded:
        raise
    except Exception as error:  # noqa: BLE001  # every error becomes one of the run
        return _error_of(error, claimed.run)


def _record(
    claimed: ClaimedRun, outcome: AgentResult | AgentError, following: FollowingStep | None = None
) -> None:
    """Record the outcome in a transaction of its own. Raises `RunSuperseded`."""
    usage = outcome.usage if isinstance(outcome, Completed | InvalidAnswer) else None
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
    try:
        # First, because the failure releases the reservation: the next attempt must not start with money that is already spent.
        if usage is not None:
            results.persistently(lambda: results.note_usage(claimed.run, usage))
    finally:
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
    return results.internal_error(error, run)


def _record_answer(claimed: ClaimedRun, result: AgentResult, following: FollowingStep | None) -> None:
    run, needs_approval = claimed.run, claimed.row.requires_approval
    if isinstance(result, Parked):
        results.persistently(lambda: provider_batches.park(run, result, claimed.row))
        if claimed.row.group_key or claimed.row.files:
            # It keeps its other slots, because work on its group or files must wait for it.
            _leave_seat(claimed.grant)
        return
    if isinstance(result, Accepted):
        results.persistently(lambda: sessions.saw(run, result.session_id))
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


def _request(claimed: ClaimedRun) -> AgentRequest:
    row, role = claimed.row, claimed.role
    material = execution_request.at_hand(row) if row.started else _fetch_inputs(claimed)
    timeout = row.timeout_seconds or role.timeout_seconds
    attempt = Attempt(
        token=claimed.run, number=row.attempts, wakes=row.wakes, role=role, knowledge=claimed.knowledge, timeout_seconds=timeout,
        deadline=clock.now() + timedelta(seconds=timeout),
    )  # fmt: skip
    return provider_batches.with_history(execution_request.build(row, attempt, material), row)


def _fetch_inputs(claimed: ClaimedRun) -> Material:
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


# Threads with one run each share work: one statement for several answers, one call for several exchanges (and see `claims`).
EXCHANGING = Combining(together=_exchange_shared, alone=_exchange_alone)
RECORDING = Combining(together=_record_shared, alone=_record_alone)
QUICK_WORK = QuickWork(begin=partial(_run_and_continue, alone=True), relieve=_relieve, hold=_hold)
