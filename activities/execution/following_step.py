"""The step that follows a run immediately, on the same slot.

The transaction that ends the run also claims the step, without a message. Admission passes the slot on only while no other work waits, so
the step overtakes nobody. It is asked before the transaction begins, and the transaction only checks whether the answer has arrived, so no
transaction waits for Redis. In all other cases the step is offered as usual and the slot is released.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from uuid import UUID

import redis

from activities import admission, leases, relay
from activities.admission import Exchange, Grant
from activities.admission.exchange import Release
from activities.execution import claims, results
from activities.execution.claims import ClaimedRun, Claims
from activities.quick_work import HeldGrant
from activities.submission import NewActivity, reserving
from agents import configuration
from agents.exceptions import AgentError
from tenants.identifiers import uuid7

#: Set while other work waits, according to the last answer of admission. Then no step follows immediately.
OTHERS_WAIT = threading.Event()
#: Steps (pipeline, name) whose last end began no other step. Admission is not asked to pass their slots on.
LAST_STEPS: set[tuple[UUID | None, str | None]] = set()
MOST_LAST_STEPS = 10_000


class FollowingStep:
    """The step after `before`, which a thread of this worker runs next, if all goes well. Used once, by that thread."""

    def __init__(self, before: ClaimedRun, lease: leases.Lease) -> None:
        self._before, self._lease = before, lease
        self._activity_id, self._run_id = uuid7(), uuid7()
        self._requested_at = 0.0
        self._slot: admission.PassedSlot | None = None
        self._claims: Claims | None = None  # of the last try of the transaction
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
        if not grant or claims.is_to_confirm(self._requested_at):
            return
        held = HeldGrant(self._passed(grant), self._requested_at, self._run_id)
        with suppress(AgentError):
            if not configuration.settings_for(*held.kind).budgeted:
                self._holding.enter_context(self._lease.holding(self._run_id))
                self._was_claimed = True
                self._claims = claims.begin_claims([held], reservation)

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

    def take_up(self) -> tuple[ClaimedRun, ExitStack] | None:
        """Return the claimed run of the step, which the lease holds until the stack is closed, or None if the step is offered as usual.

        Releases the slot if it is not used.
        """
        if self._slot is None:
            return None
        grant = self._slot.grant()
        claimed = self._claims.fetch() if self._claims and self._is_recorded else []
        if not claimed:
            self._holding.close()
            if self._was_claimed:
                # The claim was rolled back, took too long, or its answer was lost.
                held = self._passed(grant or "")
                results.persistently(
                    partial(claims.give_back_unless_used, held, self._run_id, is_passed=True)
                )
            elif grant != "":
                relay.hand_over(Exchange(releases=[Release(self._activity_id, grant or "", unused=True)]))
            return None
        if (changes := relay.collector()) is not None:
            changes.drop_offer(self._activity_id)
            changes.drop_release(self._before.grant.activity_id)
            relay.hand_over_now(changes)  # because the run that follows may take long
        return claimed[0], self._holding

    def abandon(self) -> None:
        """Forget the step, because the run before it could not be recorded. The leader's audit releases a slot that was passed on."""
        self._holding.close()
        if self._slot is not None:
            self._slot.grant()  # reads the answer, so that the connection goes back to its pool
