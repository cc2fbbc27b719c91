"""Dispatch: a granted activity is claimed, run by its agent, and its result recorded; quick ones several at a time.

A message is a hint. Whether there is work is decided by the grant (its slots must still be held) and by the claim (a compare-and-set in
PostgreSQL); a duplicate, late or forged message finds one of them refused and does nothing. No transaction is open while the agent works.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
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
from activities.submission import NewActivity, reserving
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

# What a message from the broker may say, and what is logged when one says something else.
#
# Who can write to Redis can push any message, so none is believed: what it names must have the right form, the grant must be held, and the
# claim must succeed. A refused message changes nothing and is logged, so that an attacker is seen.


LONGEST_GRANT = 100  # characters; ours have a quarter of that
LONGEST_ROLE = 63


class MalformedMessage(ValueError):
    """The arguments are not those of a message of ours."""


def read_message(*, tenant: object, activity: object, grant: object, role: object) -> Grant:
    """The grant that a message names. Raises `MalformedMessage`."""
    if not isinstance(grant, str) or not 0 < len(grant) <= LONGEST_GRANT:
        raise MalformedMessage("grant")
    if not isinstance(role, str) or not 0 < len(role) <= LONGEST_ROLE:
        raise MalformedMessage("role")
    return Grant(_id("activity", activity), _id("tenant", tenant), role, grant, started=False)


def refuse_message(why: str, grant: Grant | None = None) -> None:
    """Log a message that none of our processes has sent."""
    named = {"tenant": str(grant.tenant_id), "activity": str(grant.activity_id)} if grant else {}
    logger.warning("Message refused", extra={"action": "message_refused", "reason": why, **named})


def note_stale_message(grant: Grant) -> None:
    """A second delivery, a very late one, or a forged one: from here they look the same, and nothing follows."""
    logger.info(
        "Message without a grant",
        extra={
            "action": "message_stale",
            "tenant": str(grant.tenant_id),
            "activity": str(grant.activity_id),
        },
    )


def _id(name: str, value: object) -> UUID:
    if not isinstance(value, str) or len(value) != 36:
        raise MalformedMessage(name)
    try:
        return UUID(value)
    except ValueError as error:
        raise MalformedMessage(name) from error


def receive(**arguments: object) -> None:
    """Do what the message asks for, if it names a grant at all."""
    try:
        grant = read_message(**arguments)
    except MalformedMessage as error:
        refuse_message(f"malformed {error}")
    else:
        work(grant)


def work(grant: Grant) -> None:
    """Run the granted activity, and go on with what is granted next as long as the message is young."""
    _replace_broken_connections()
    lease, asked = leases.current(), time.monotonic()
    if grant.role not in lease.roles:
        # On the queue of another role, where publishing never puts it. What was granted is published again on its own.
        refuse_message("role_not_served", grant)
    elif not _is_granted(grant):
        note_stale_message(grant)
    else:
        _run_and_continue([HeldGrant(grant, asked)])


def _run_and_continue(held: list[HeldGrant], *, alone: bool = False) -> None:
    """Run these grants, of one tenant and role, then those that are granted when their slots come back, until the message is old.

    Each grant that is run without a message of its own saves one. A long agent call is always the last of its message, so that the
    broker shows long work as such. `alone`: without the threads for quick work, which are held up.
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
                superseded = _run(held, lease, began)
            asked = time.monotonic()
            grants = EXCHANGING.do(None, (changes, _seats_for_next(lease, began, most if is_quick else 1)))
            for grant in superseded:
                _offer_if_woken(grant)
            held = _pass_on_others([HeldGrant(grant, asked) for grant in grants])
            if is_at_quick_work and not held:
                held = QUICK_WORK.take_or_leave(most)
                is_at_quick_work = bool(held)
    finally:
        if is_at_quick_work:
            QUICK_WORK.leave()


def _may_go_on(lease: leases.Lease, message_began: float) -> bool:
    """Whether a thread takes more work than its message has named: not when the message is old, or the worker drains."""
    age = time.monotonic() - message_began
    return age < settings.ORCHESTRATOR_CONTINUE_SECONDS and not lease.draining.is_set()


def _seats_for_next(lease: leases.Lease, message_began: float, most: int) -> int:
    """How many grants a thread asks for."""
    if not _may_go_on(lease, message_began):
        return 0
    return max(1, min(most, lease.concurrency - lease.active - QUICK_WORK.waiting()))


def _exchange_alone(wanted: tuple[Exchange, int]) -> list[Grant]:
    what, seats = wanted
    grants = relay.release_and_acquire(what, roles=leases.current().open_roles(), start=seats)
    (OTHERS_WAIT.set if grants.others_wait else OTHERS_WAIT.clear)()
    return grants


def _exchange_shared(wanted: Sequence[tuple[Exchange, int]]) -> list[list[Grant]]:
    """The exchanges of several threads as one, and the grants that each of them goes on with."""
    everything = Exchange()
    for what, _ in wanted:
        everything.add(what)
    grants = iter(_exchange_alone((everything, sum(seats for _, seats in wanted))))
    return [list(islice(grants, seats)) for _, seats in wanted]


def _pass_on_others(held: list[HeldGrant]) -> list[HeldGrant]:
    """The grants that this thread goes on with, of one tenant and role. Others go to the threads for quick work, or out as messages."""
    mine = [each for each in held if each.kind == held[0].kind]
    others = [each for each in held if each.kind != held[0].kind]
    quick = [each for each in others if QUICK_WORK.is_quick(each.grant)]
    QUICK_WORK.leave_to_others(quick)
    relay.publish([each.grant for each in others if each not in quick])
    return mine


def _replace_broken_connections() -> None:
    """Only those that failed: asking each one whether it still works would cost a round trip per message."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()


def _is_granted(grant: Grant) -> bool:
    return grant.started or _slot_is_held(grant)


def _slot_is_held(grant: Grant) -> bool:
    try:
        return admission.start(grant.activity_id, grant.grant)
    except (Closed, redis.RedisError):
        # Without slots nothing may start. Recovery offers the activity again when admission is back.
        return False


def _run(held: Sequence[HeldGrant], lease: leases.Lease, message_began: float) -> list[Grant]:
    """Run activities of one tenant and role, from claim to result, and the steps that follow one at once. What ends a run gives back its
    slot.

    Returns the grants whose runs were ended by others during the call.
    """
    with ExitStack() as holding:
        holding.enter_context(lease.holding(*(each.run_id for each in held)))
        with PROTECTION.turn(lease, held[0].grant.role) as is_open:
            if not is_open:
                # The host is overloaded by now. They are offered again, to other workers.
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
    """Run it, and as long as the message is young each step that follows at once, see `_Following`."""
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


def _relieve(group: Group) -> None:
    """Do the rest of a group whose thread waits for an agent. When the next call takes long as well, another thread does the rest."""
    run_ids = [run.claimed.run.run_id for run in group.rest()]
    with leases.current().holding(*run_ids), QUICK_WORK.watching(group):
        for grant in _call_and_record(group):
            _offer_if_woken(grant)


def _call_and_record(group: Group) -> list[Grant]:
    """Call the agents of a group one after the other and record their answers: of a run that is alone at once, of several together.

    An error that cannot be recorded is raised when the others have ended. Its run has no thread then and is handed back by
    `worker.hand_back_unattended`.
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

    `began`: when the claim began, in nanoseconds of the epoch. `following`: what may follow it at once, if anything may.
    """

    claimed: _ClaimedRun
    began: int
    answer: Completed | None = None
    following: _Following | None = None
    holding: ExitStack = field(default_factory=ExitStack)  # of this run alone

    def context(self) -> AbstractContextManager[None]:
        return run_of(self.claimed.row, self.claimed.run.run_id, began=self.began)

    def may_share(self, outcome: AgentResult | AgentError) -> TypeGuard[Completed]:
        """Whether the outcome can be recorded with others: it asks nobody and wakes nobody."""
        row = self.claimed.row
        return isinstance(outcome, Completed) and row.link_kind is None and not row.requires_approval


def _call(run: _Run, group: Group) -> list[Grant]:
    """Call the agent and record the outcome, or keep it to be recorded with others. Returns the grant of a run that others have ended."""
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
    """A run that another thread may record. The slots that this frees go into `changes`, the exchange of its own thread."""

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
    """Whether each could be recorded. A thread whose run was refused records it again alone, and learns why."""
    answers = [results.Answer(each.run.claimed.run, each.answer, each.context) for each in shared]
    accepted = results.record_completed_together(answers, is_patient=False)
    return [each.run.claimed.run.run_id in accepted for each in shared]


def _record_together(runs: Sequence[_Run], errors: list[Exception]) -> list[Grant]:
    """Record answers. One that is refused is recorded again alone, which says why; an error that cannot be recorded goes into `errors`."""
    superseded: list[Grant] = []
    accepted: set[UUID] = set()
    if len(runs) > 1:
        answers = [results.Answer(run.claimed.run, run.answer, run.context) for run in runs if run.answer]
        try:
            accepted = results.persistently(partial(results.record_completed_together, answers))
        except Exception as error:  # noqa: BLE001  # each alone says what is wrong with it
            facts = {"action": "recorded_alone", "reason": type(error).__name__, "count": len(runs)}
            logger.warning("Results are recorded one by one", extra=facts)
    for run in runs:
        if run.claimed.run.run_id not in accepted and run.answer is not None:
            try:
                with run.context():
                    _record(run.claimed, run.answer)
            except RunSuperseded:
                superseded.append(_note_superseded(run.claimed))
            except Exception as error:  # noqa: BLE001  # the others are recorded all the same
                errors.append(error)
    return superseded


def _note_superseded(claimed: _ClaimedRun) -> Grant:
    """Somebody else has ended this run. Its slot was given back then, or is given back now."""
    logger.info(
        "Result of a superseded run refused",
        extra={"action": "run_superseded", "run": str(claimed.run.run_id)},
    )
    relay.hand_over(_free_slot(claimed.grant))
    return claimed.grant


def _free_slot(grant: Grant) -> Exchange:
    """What gives back the slot of a run that others have ended: its call is over only now."""
    with tenant_scope(grant.tenant_id):
        ActivityRun.objects.for_tenant(grant.tenant_id).filter(
            activity_id=grant.activity_id, grant=grant.grant
        ).exclude(status="running").update(worker_id=None)
    return Exchange(releases=[Release(grant.activity_id, grant.grant)])


def _offer_if_woken(grant: Grant) -> None:
    """Offer an activity that was woken during the call: while its slot was taken, offers of it changed nothing.

    Called after the slot was given back, so whatever wakes the activity later than this finds the slot free.
    """
    with tenant_scope(grant.tenant_id):
        # Each by its key alone: joined, or asked for what is due or created, PostgreSQL may read all that waits.
        wakes = Wake.objects.for_tenant(grant.tenant_id).filter(
            activity_id=grant.activity_id, state="pending"
        )
        found = Activity.objects.for_tenant(grant.tenant_id).filter(pk=grant.activity_id)
        is_due = None in wakes.values_list("due_at", flat=True)
        offers = [Offer.of(activity) for activity in found if is_due and activity.status == "created"]
    relay.hand_over(Exchange(offers=offers))


def _give_back_unless_used(grant: Grant, run_id: UUID | None = None, *, is_passed: bool = False) -> None:
    """Give back the slot of a grant whose claim found nothing. `is_passed`: no message has named it, so it is ours without doubt.

    When another delivery of the same message was first, its run gives the slot back. When it was our own claim, `run_id`, whose answer was
    lost with the connection or came too late, nobody works on that run, and it is handed back.
    """
    with tenant_scope(grant.tenant_id):
        runs = ActivityRun.objects.for_tenant(grant.tenant_id)
        used = runs.filter(activity_id=grant.activity_id, grant=grant.grant).first()
        if used is not None and used.pk == run_id:
            lost = ServerAway("The answer to the claim was lost, or came too late.", retry_after=0.0)
            with suppress(RunSuperseded):
                results.record_failed(RunToken(grant.tenant_id, grant.activity_id, run_id, used.fence), lost)
            return
        named = Activity.objects.for_tenant(grant.tenant_id).filter(
            pk=grant.activity_id, agent_role=grant.role
        )
        forged = used is None and not is_passed and not named.exists()
    if forged:
        # The slot is that of somebody else's message, which is still to come.
        refuse_message("forged", grant)
    elif used is None:
        relay.hand_over(Exchange(releases=[Release(grant.activity_id, grant.grant, unused=True)]))


@dataclass(frozen=True, slots=True)
class _ClaimedRun:
    """A claimed activity and what its request is built from."""

    row: Any
    run: RunToken
    role: configuration.RoleSettings
    knowledge: Knowledge
    grant: Grant


class _SlotWithdrawn(Exception):
    """A slot went to others while the claim waited for PostgreSQL. A run that was claimed is handed back."""

    def __init__(self, grant: Grant) -> None:
        super().__init__(grant)
        self.grant = grant


def _claim_or_give_back(held: Sequence[HeldGrant]) -> list[_ClaimedRun]:
    """Claim the granted activities; give back the slots of those that could not be claimed."""
    is_shared = len(held) == 1 and not tracing.is_on()
    found = CLAIMING.do(held[0].kind, held[0]) if is_shared else _claim_persistently(held)
    runs = {claimed.run.run_id for claimed in found}
    for each in held:
        if each.run_id not in runs:
            results.persistently(partial(_give_back_unless_used, each.grant, each.run_id))
    return found


def _claim_shared(held: Sequence[HeldGrant]) -> list[list[_ClaimedRun]]:
    found = {claimed.run.run_id: [claimed] for claimed in _claim(held, is_patient=False)}
    return [found.get(each.run_id, []) for each in held]


def _claim_persistently(held: Sequence[HeldGrant]) -> list[_ClaimedRun]:
    try:
        return results.persistently(lambda: _claim(held))
    except _SlotWithdrawn as withdrawn:
        note_stale_message(withdrawn.grant)
    except AgentError as error:
        facts = {"action": "claim_failed", "role": held[0].grant.role, "reason": str(error)}
        logger.warning("Role cannot run", extra=facts)
    except OutOfBudget as error:
        # The claim was undone with its transaction.
        if len(held) > 1:
            return [claimed for each in held for claimed in _claim_persistently([each])]
        grant, refusal = held[0].grant, error
        results.persistently(lambda: budgets.postpone(grant.tenant_id, grant.activity_id, refusal))
    return []


def _claim(held: Sequence[HeldGrant], *, is_patient: bool = True) -> list[_ClaimedRun]:
    """Claim in one transaction.

    A slot without a run may be taken back, or be missing after a rebuild, from `SETTLE_SECONDS` on after admission has said that it is
    held. A claim that took `CLAIM_SECONDS`, behind a locked row or a server that was away, asks for its slot again before any agent is
    called. Raises `_SlotWithdrawn`, `OutOfBudget`.
    """
    with tenant_scope(held[0].grant.tenant_id, is_patient=is_patient):
        _refuse_late(held)
        claims = _begin_claims(held)
        if claims.role.budgeted:
            for row in claims.rows.fetch():
                budgets.reserve(row, row.run, execution_request.role_for(claims.role, row.agent_options))
    return claims.fetch()


@dataclass(frozen=True, slots=True)
class _Claims:
    """Claims that go with what their transaction does next."""

    held: Sequence[HeldGrant]
    role: configuration.RoleSettings
    knowledge: Knowledge
    briefing: str
    rows: Rows

    def fetch(self) -> list[_ClaimedRun]:
        """What was claimed, after the commit. Raises `_SlotWithdrawn`."""
        rows = {row.run: row for row in self.rows.fetch()}
        if rows:
            _refuse_late(self.held)
        tenant_id, agent_role = self.held[0].kind
        signs = agent_role if self.role.adapter.options.get("signed_callbacks") is True else ""
        return [
            _ClaimedRun(
                row=row,
                run=RunToken(
                    tenant_id,
                    row.id,
                    row.run,
                    row.fence,
                    self.briefing,
                    execution_sessions.resume(row),
                    signs,
                ),
                role=execution_request.role_for(self.role, row.agent_options),
                knowledge=self.knowledge,
                grant=each.grant,
            )
            for each in self.held
            if (row := rows.get(each.run_id)) is not None
        ]


def _begin_claims(held: Sequence[HeldGrant]) -> _Claims:
    """In the caller's `tenant_scope`. Raises `AgentError` when the role cannot run."""
    tenant_id, agent_role = held[0].kind
    role = configuration.settings_for(tenant_id, agent_role)
    knowledge = execution_request.knowledge_of(tenant_id, agent_role, role)
    briefing = sessions.briefing_with(role.briefing, knowledge.versions)
    rows = transitions.claim(
        [transitions.Claim(each.grant.activity_id, each.run_id, each.grant.grant) for each in held],
        tenant_id=tenant_id, role=agent_role, worker_id=leases.current().worker_id, timeout_seconds=role.timeout_seconds,
        version=role.adapter.version or "", briefing=briefing, day=clock.today(),
    )  # fmt: skip
    return _Claims(held, role, knowledge, briefing, rows)


def _refuse_late(held: Sequence[HeldGrant]) -> None:
    """Raises `_SlotWithdrawn` when the claim took so long that a slot could go to others, and it has gone."""
    for each in held:
        if time.monotonic() - each.asked > CLAIM_SECONDS and not _slot_is_held(each.grant):
            raise _SlotWithdrawn(each.grant)


class _Following:
    """The step that follows a run at once, on its slot: claimed in the transaction that ends the run, without a message of its own.

    Only while nobody waits for anything, so that nobody is overtaken. Admission is asked before that transaction begins, and within it one
    only looks whether it has answered: no transaction waits for Redis. What comes otherwise than expected is offered as usual, and the
    slot is given back.
    """

    def __init__(self, before: _ClaimedRun, lease: leases.Lease) -> None:
        self._before, self._lease = before, lease
        self._activity_id, self._run_id = uuid7(), uuid7()
        self._asked = 0.0
        self._slot: admission.PassedSlot | None = None
        self._claims: _Claims | None = None  # of the last transaction
        self._was_claimed = False  # in any of them
        self._is_recorded = False
        self._holding = ExitStack()

    def may_begin(self) -> bool:
        """Whether the end of the run may begin another step that needs nothing but the same slot."""
        row, role = self._before.row, self._before.role
        return (
            row.step is not None
            and not (role.budgeted or OTHERS_WAIT.is_set() or tracing.is_on())
            # Its work gets a group by its parameters, which are not known here.
            and role.adapter.adapter != "cli"
            and row.agent_role in self._lease.open_roles()
        )

    def ask(self) -> None:
        """Let admission pass the slot on, if it can; nobody waits for its answer."""
        self._asked = time.monotonic()
        with suppress(redis.RedisError):
            grant = self._before.grant
            self._slot = admission.PassedSlot(grant.activity_id, grant.grant, self._activity_id)

    def record(self, end: Callable[[Callable[[], AbstractContextManager[None]]], object]) -> None:
        """Carry out `end`, which ends the run before in a transaction, with what surrounds all that follows from that. May be repeated."""
        self._claims = None
        self._holding.close()
        end(self._claiming)
        self._is_recorded = True

    @contextmanager
    def _claiming(self) -> Iterator[None]:
        with reserving(self._activity_id) as reservation:
            yield
        if self._slot is None or not self._is_expected(reservation.begun):
            return
        grant = self._slot.grant_so_far()
        if not grant or time.monotonic() - self._asked > CLAIM_SECONDS:
            return
        held = HeldGrant(self._passed(grant), self._asked, self._run_id)
        with suppress(AgentError):
            if not configuration.settings_for(*held.kind).budgeted:
                self._holding.enter_context(self._lease.holding(self._run_id))
                self._was_claimed = True
                self._claims = _begin_claims([held])

    def _is_expected(self, begun: Sequence[NewActivity]) -> bool:
        """Whether just this has begun: work that needs the slot that was asked for, and nothing else."""
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
        """The claimed run of the step, when the run before it was recorded; None when it goes the usual way. Gives back an unused slot."""
        if self._slot is None:
            return None
        grant = self._slot.grant()
        claimed: list[_ClaimedRun] = []
        with suppress(_SlotWithdrawn):
            claimed = self._claims.fetch() if self._claims and self._is_recorded else []
        if not claimed:
            self._holding.close()
            if self._was_claimed:
                # It was undone, took too long, or its answer was lost.
                held = self._passed(grant or "")
                results.persistently(partial(_give_back_unless_used, held, self._run_id, is_passed=True))
            elif grant != "":
                relay.hand_over(Exchange(releases=[Release(self._activity_id, grant or "", unused=True)]))
            return None
        self._tell_others()
        return _Run(claimed[0], time.time_ns(), holding=self._holding)

    def _tell_others(self) -> None:
        """What else the end of the run before has left for admission does not wait for this run, which may take long."""
        gathered = relay.collector()
        if gathered is None:
            return
        gathered.drop_offer(self._activity_id)
        gathered.drop_release(self._before.grant.activity_id)
        if gathered:
            others = gathered.take()
            with relay.collecting_in(None):
                relay.hand_over(others)

    def abandon(self) -> None:
        """The run before it could not be recorded. Upkeep finds a slot that was passed on."""
        self._holding.close()
        if self._slot is not None:
            self._slot.grant()  # or its connection would wait for the answer for ever


def _outcome(claimed: _ClaimedRun) -> AgentResult | AgentError:
    """The result of the agent, or the error that it ended with. Raises `RunSuperseded` when that no longer counts."""
    try:
        with skills.write_files(_request(claimed), claimed.knowledge) as request:
            return runner.run_agent(request, link=LinkOfRun(claimed.run))
    except RunSuperseded:
        raise
    except Exception as error:  # noqa: BLE001  # all become errors of the run
        return _error_of(error, claimed.run)


def _record(
    claimed: _ClaimedRun, outcome: AgentResult | AgentError, following: _Following | None = None
) -> None:
    """Record the outcome in a transaction of its own. Raises `RunSuperseded` when it does not count any more."""
    if not isinstance(outcome, AgentError):
        try:
            _record_answer(claimed, outcome, following)
            return
        except RunSuperseded:
            raise
        except Exception as error:  # noqa: BLE001  # all become errors of the run
            outcome = _error_of(error, claimed.run)
    failure = outcome
    tracing.fail(failure.error_code)
    results.persistently(lambda: results.record_failed(claimed.run, failure))


def _error_of(error: Exception, run: RunToken) -> AgentError:
    """The error that the run ends with. Raises `error` itself when it may pass."""
    if isinstance(error, AgentError):
        return error
    if outages.is_away(error):
        # Nobody's fault: the run is handed back as soon as that can be recorded.
        return ServerAway("A server that the run needs went away.")
    if outages.may_pass(error):
        raise error  # The run has no thread now, is found as such, and handed back.
    # A mistake of ours, or an answer that the database refuses. Failing the activity shows it to people; leaving
    # the run open would only repeat it.
    logger.error(
        "Run broke inside the engine", exc_info=error, extra={"action": "run_broke", "run": str(run.run_id)}
    )
    return PermanentAgentError(f"Internal error: {type(error).__name__}", code="internal_error")


def _record_answer(claimed: _ClaimedRun, result: AgentResult, following: _Following | None) -> None:
    run, needs_approval = claimed.run, claimed.row.requires_approval
    if isinstance(result, Parked):
        results.persistently(lambda: provider_batches.park(run, result, claimed.row))
        if claimed.row.group_key or claimed.row.files:
            _leave_seat(claimed.grant)  # The other slots it keeps, since its group or its files wait for it.
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
        # The audit of slots finds the seat: an accepted run has no worker.
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
    """Read the outputs that are not in the spool any more, between two transactions, since MongoDB may be slow, and start the run."""
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
        transitions.start(tenant_id=row.tenant_id, activity_id=row.id, run_id=run.run_id, fence=row.fence)
    return material


# What surrounds a run in a worker: ids on its log lines, and the span of its trace.


@contextmanager
def run_of(row: Any, run_id: UUID, *, began: int) -> Iterator[None]:
    """`row` is the claimed activity; `began`: when its claim began, in nanoseconds of the epoch.

    The run continues the trace of its latest wake, if that is young; its other wakes and the message are linked.
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


# For threads that work on one run each: several claims in one statement, several answers in one, several exchanges as one.
CLAIMING = Combining(together=_claim_shared, alone=lambda held: _claim_persistently([held]))
EXCHANGING = Combining(together=_exchange_shared, alone=_exchange_alone)
RECORDING = Combining(together=_record_shared, alone=_record_alone)
#: Set while work waits for its turn, as admission has said last: then nothing follows at once.
OTHERS_WAIT = threading.Event()
#: The quick work of this process.
QUICK_WORK = QuickWork(begin=partial(_run_and_continue, alone=True), relieve=_relieve)
