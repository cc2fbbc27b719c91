"""Progression: advances a pipeline run when one of its activities has settled.

It runs in the transaction that settled the activity, so the result and the next step are recorded together or not at all. The run's row is
locked before any step is read, because two last steps that finish together would each see the other one as active. Everything here may be
repeated: only an active step can settle, and only a pending step can start.

A step with a condition or a list of items is decided in the same way if the outputs that its expressions read are still in PostgreSQL.
Otherwise the step is marked, and `waiting_steps` decides it later, because no transaction waits for MongoDB.
"""

from __future__ import annotations

import logging
from collections import Counter, namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from activities import cancellation as activity_cancellation
from activities.decision_rules import DecisionRules
from activities.exceptions import TransitionRefused
from activities.human_tasks import revisions
from activities.models import Activity
from activities.outputs import StoredOutput
from activities.states import LinkKind, Status
from activities.submission import NewActivity
from activities.transitions import Following
from pipelines import conditions, inputs, parameters, period_counts, relatives, starting, versions
from pipelines.definition import StepDefinition
from pipelines.exceptions import ReplayUnderWay
from pipelines.graph import Advance, StepState
from pipelines.inputs import References
from pipelines.models import PipelineRun, StepRun
from pipelines.models.run import StepReason
from pipelines.versions import Compiled
from tenants.context import APP
from tenants.models import TenantQuerySet
from tenants.sql import Array, Statement

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent / "sql"
_SETTLE, _SETTLE_BRANCH, _STATES, _END_RUN = (
    Statement.load(_FOLDER, name) for name in ("settle_step", "settle_branch", "states", "end_run")
)

_OF_RUN = (*(field.attname for field in PipelineRun._meta.concrete_fields), "settled", "state")
_run_of: Callable[[Sequence[Any]], Any] = namedtuple("Run", _OF_RUN)._make  # type: ignore[attr-defined]
#: A successful result settles its step in the statement that records it.
FOLLOWING = Following(
    (_FOLDER / "settle_with_end.sql").read_text(encoding="utf-8"), "settled", ("activity", *_OF_RUN)
)

_GOOD = (Status.DONE, Status.APPROVED)
#: Activities with these links concern the activity of a step, but are not that activity.
_ASIDE = (
    LinkKind.GATE, LinkKind.APPROVAL, LinkKind.RESOLUTION, LinkKind.REVIEW, LinkKind.ESCALATION, LinkKind.SUBTASK,
)  # fmt: skip

Known = Mapping[UUID, StoredOutput | None]


def advance(activity: Any) -> None:
    """Advance the run of an activity that has just settled. `activity`: a `transitions.Moved`."""
    if _is_aside(activity):
        return
    if activity.status == Status.REASSIGNED:
        _continue_with_successor(activity)
        return
    if activity.status == Status.REJECTED and follow_rejection(activity):
        return
    # A gate has no output of its own, so it passes on what it approved.
    output = activity.output_ref or activity.input_ref if activity.status in _GOOD else None
    run, state = _settle(activity, output)
    if run is None or run.status != "running":
        return
    plan = versions.compile_version(run.version_id)
    following = _following(run, plan, activity.step, state == StepState.DONE)
    start_following(
        run, plan, following, left={activity.step: output} if output and not activity.branch else None
    )


def _is_aside(activity: Any) -> bool:
    """Whether no step depends on the activity: it belongs to no step, or only concerns the activity of one."""
    return activity.pipeline_run_id is None or activity.step is None or activity.link_kind in _ASIDE


def _continue_with_successor(activity: Any) -> None:
    """Assign the step to the successor. A failed step becomes active again, and the steps that were skipped because of it pending.

    Raises `TransitionRefused` if the run was cancelled, because the person who cancelled it did not know of this successor, or if the step
    has failed and a relative of the run works.
    """
    run = lock_runs(activity.tenant_id).get(pk=activity.pipeline_run_id)
    if run.status == "cancelled":
        raise TransitionRefused(
            activity.id, "reassign", activity.source, f"Pipeline run {run.pk} was cancelled."
        )
    if activity.source in (Status.FAILED, Status.NEEDS_REVIEW):
        reopen(activity)
    continue_with(LinkKind.REASSIGNED_FROM, activity)


def of_cancelled_runs(tenant_id: UUID, activities: Iterable[Any]) -> set[UUID]:
    """Return the ids of those activities of steps whose run was cancelled, so that no successor continues it. One query."""
    runs = {activity.id: activity.pipeline_run_id for activity in activities if not _is_aside(activity)}
    cancelled = PipelineRun.objects.for_tenant(tenant_id).filter(
        pk__in=set(runs.values()), status="cancelled"
    )
    ids = set(cancelled.values_list("pk", flat=True))
    return {activity_id for activity_id, run_id in runs.items() if run_id in ids}


def of_repeated_runs(tenant_id: UUID, activities: Iterable[Any], *, together: bool) -> set[UUID]:
    """Return the ids of those activities of steps whose run has a relative that has not ended, see `relatives`.

    `together`: all are to be retried, so of relatives among their runs only the newest may continue. One or two queries.
    """
    runs = {activity.id: activity.pipeline_run_id for activity in activities if not _is_aside(activity)}
    if not runs:
        return set()
    repeated = set(relatives.find_working(tenant_id, runs.values()))
    if together:
        repeated |= relatives.find_overtaken(tenant_id, set(runs.values()) - repeated)
    return {activity_id for activity_id, run_id in runs.items() if run_id in repeated}


def lock_runs(tenant_id: UUID) -> TenantQuerySet:
    """Return a query that locks runs. Lock a run before reading its steps."""
    return PipelineRun.objects.for_tenant(tenant_id).select_for_update()


def _settle(activity: Any, output: UUID | None) -> tuple[Any | None, str]:
    """Settle the step, or its branch. Returns the run and the step's state, or None for the run if the step has not settled by this."""
    if getattr(activity, "followed_activity", None) is not None:
        run = _run_of(activity[-len(_OF_RUN) :])
        return (run, run.state) if run.settled else (None, StepState.DONE)
    state = StepState.DONE if activity.status in _GOOD else StepState.FAILED
    parameters = {
        "tenant": activity.tenant_id,
        "run": activity.pipeline_run_id,
        "step": activity.step,
        "branch": activity.branch,
        "state": state,
        "output": output,
    }
    if activity.branch:
        rows = _SETTLE_BRANCH.run(parameters, using=APP)
        return (rows[0], rows[0].state) if rows else (None, state)
    rows = _SETTLE.run(parameters, using=APP)
    return (rows[0], state) if rows and rows[0].settled else (None, state)


def _following(run: Any, plan: Compiled, step: str, good: bool) -> Advance:
    """Return which steps start and which are skipped. Avoids reading the other steps for chains and for joins that must still wait."""
    dependents = plan.graph.dependents_of(step)
    if good and all(plan.graph.dependencies_of(each) == (step,) for each in dependents):
        return Advance(start=dependents)
    if good and all(_still_waits(run, plan, each) for each in dependents):
        return Advance()
    return plan.graph.after(step, states_of(run.id))


def _still_waits(run: Any, plan: Compiled, step: str) -> bool:
    """Whether one of the steps that `step` depends on has not settled."""
    dependencies = plan.graph.dependencies_of(step)
    # If more steps are unsettled than there are other steps, one of them must be a dependency. This saves a wide join a thousand queries.
    if run.unsettled > len(plan.graph.dependencies) - len(dependencies):
        return True
    unsettled = StepRun.objects.filter(run_id=run.id, status__in=(StepState.PENDING, StepState.ACTIVE))
    return unsettled.filter(step__in=dependencies).exists()


def states_of(run_id: UUID) -> dict[str, str]:
    """Return the state of each step for the graph. A step that is being decided, or waits for room, no longer waits for other steps."""
    return {row.step: row.state for row in _STATES.run({"run": run_id})}


def start_following(
    run: Any,
    plan: Compiled,
    following: Advance,
    *,
    left: References | None = None,
    known: Known | None = None,
) -> None:
    """Start and skip steps, and everything that follows from that, up to the end of the run. The caller holds the lock of `run`.

    `left`: the output of the step that has just settled, if no other output is needed. `known`: outputs that were read before.
    """
    unsettled = run.unsettled
    while following.start or following.skip:
        unsettled -= _end(run, following.skip, StepState.SKIPPED, reason=StepReason.UPSTREAM)
        certain = [step for step in following.start if step not in plan.conditional]
        ended = _start(run, plan, certain, left)
        steps = [step for step in following.start if step in plan.conditional]
        ended += _decide(run, plan, steps, left, known or {}) if steps else 0
        unsettled -= ended
        following = plan.graph.advance(states_of(run.id)) if ended else Advance()
    if unsettled == 0:
        finish(run.tenant_id, run.id, plan)
        period_counts.run_changed(run)


def _start(run: Any, plan: Compiled, steps: Sequence[str], left: References | None) -> int:
    """Start these steps. Returns how many failed instead, because their parameters do not fit the input schemas of their agents."""
    refused = {step: _refuse_params(run, plan.step(step), [run.params]) for step in steps}
    started = [step for step in steps if not refused[step]]
    if started:
        starting.start(run, plan, started, _read_left_for(run, plan, started, left))
    return sum(refused.values())


def _refuse_params(run: Any, step: StepDefinition, params: Sequence[Mapping[str, Any]]) -> int:
    """Fail the step if the parameters do not fit its agent's input schema. Returns 1 if it failed, else 0."""
    why = parameters.refusal(run.tenant_id, step, params)
    return fail(run, step.id, parameters.INVALID, why) if why else 0


def _read_left_for(run: Any, plan: Compiled, steps: Sequence[str], left: References | None) -> References:
    """Return the outputs that these steps read. A chain needs no query, because `left` is enough."""
    needed = {dependency for step in steps for dependency in plan.graph.dependencies_of(step)}
    return left if left is not None and needed <= left.keys() else inputs.of_run(run.id) if needed else {}


def _decide(
    run: Any,
    plan: Compiled,
    steps: Sequence[str],
    left: References | None,
    known: Known,
) -> int:
    """Evaluate the conditions and the lists of these steps, and act on them. Returns how many steps have settled by this."""
    seen = inputs.read_inputs(run.tenant_id, run.id, plan, steps, known)
    if seen.missing:
        _pending(run, steps).update(reason=StepReason.EVALUATING)
        return 0
    ended, steps = _fail_blind(run, plan, steps, seen.lost)
    decisions = {
        step: conditions.decide(
            plan.step(step),
            {"params": parameters.of_step(run.params, plan.step(step)), "steps": seen.steps},
            most=settings.ORCHESTRATOR_FAN_OUT_ITEMS,
        )
        for step in steps
    }
    for step, decision in decisions.items():
        if decision.error is not None:
            ended += fail(run, step, "expression_error", decision.error)
        elif decision.starts and decision.items:
            branches = [{**run.params, **starting.of_item(item)} for item in decision.items]
            if refused := _refuse_params(run, plan.step(step), branches):
                ended += refused
                continue
            references = _read_left_for(run, plan, [step], left)
            starting.fan_out(run, plan, step, decision.items, references)
    started = {step: decision for step, decision in decisions.items() if decision.starts}
    empty = [step for step, decision in started.items() if decision.items is not None and not decision.items]
    false = [step for step, decision in decisions.items() if not decision.starts and decision.error is None]
    ended += _start(run, plan, [step for step, found in started.items() if found.items is None], left)
    ended += _end(run, empty, StepState.DONE, branches=0)
    return ended + _end(run, false, StepState.SKIPPED, reason=StepReason.CONDITION)


def _fail_blind(
    run: Any, plan: Compiled, steps: Sequence[str], lost: frozenset[str]
) -> tuple[int, list[str]]:
    """Fail the steps whose expressions read a deleted output, because null would be a guess. Returns how many, and the other steps."""
    blind = {step: lost & {name for name, _ in conditions.parts_read(plan.step(step))} for step in steps}
    ended = sum(
        fail(run, step, "output_missing", f"The output of {', '.join(sorted(names))} is not kept any more.")
        for step, names in blind.items()
        if names
    )
    return ended, [step for step in steps if not blind[step]]


def fail(run: Any, step: str, code: str, message: str) -> int:
    """Fail a pending step that has no activity: it could not be decided, or has waited too long. Returns 0 if it is not pending."""
    error = {"code": code, "message": message}
    failed = _end(run, [step], StepState.FAILED, error=error)
    if failed:
        facts = {
            "action": "step_failed",
            "tenant": str(run.tenant_id),
            "run": str(run.id),
            "step": step,
            "code": code,
        }
        logger.info("Step failed without an activity", extra=facts)
        period_counts.run_changed(run)
    return failed


def give_up(run: PipelineRun, plan: Compiled, step: str, code: str, message: str) -> None:
    """As `fail`, and advance the run. The caller holds the run's lock."""
    failed = fail(run, step, code, message)
    if failed:
        run.unsettled -= failed
        start_following(run, plan, plan.graph.advance(states_of(run.pk)))


def _end(run: Any, steps: Sequence[str], state: StepState, **more: Any) -> int:
    """Settle pending steps. Returns how many were pending."""
    if not steps:
        return 0
    changes = {"reason": "", **more, "status": state, "settled_at": Now(), "waits_until": None}
    ended = _pending(run, steps).update(**changes)
    PipelineRun.objects.filter(pk=run.id).update(unsettled=F("unsettled") - ended)
    return int(ended)


def _pending(run: Any, steps: Sequence[str]) -> QuerySet[StepRun]:
    return StepRun.objects.filter(run_id=run.id, step__in=steps, branch=0, status=StepState.PENDING)


def finish(tenant_id: UUID, run_id: UUID, plan: Compiled) -> None:
    """End a run whose steps have all settled. The caller holds the run's lock."""
    _END_RUN.run_with_next(
        {"tenant": tenant_id, "runs": Array([run_id]), "fatal": Array(plan.graph.fatal)},
        using=APP,
        lists=("runs",),
    )


def reopen(activity: Any) -> None:
    """Reactivate a failed step, or a branch of it, that an operator retries. The run continues, and skipped descendants become pending.

    Descendants that could not be decided, or waited too long, become pending too, because the new outcome may be different. Raises
    `TransitionRefused` while a relative of the run works, such as a replay, because both would do the same work.
    """
    if _is_aside(activity):
        return
    run, working = relatives.lock(activity.tenant_id, activity.pipeline_run_id)
    if working is not None:
        raise TransitionRefused(activity.id, "retry", activity.source, str(ReplayUnderWay(working)))
    if run.status == "cancelled":
        return
    steps = StepRun.objects.filter(run_id=run.pk)
    revived = steps.filter(step=activity.step, branch=activity.branch, status=StepState.FAILED).update(
        status=StepState.ACTIVE, settled_at=None
    )
    if not revived:
        return
    plan = versions.compile_version(run.version_id)
    if activity.branch and not _reopen_whole(steps.filter(step=activity.step, branch=0)):
        return  # Other branches were still active, so no step has followed yet.
    waiting = _wait_again(run, plan, activity.step)
    wait_from_now(run, plan, [activity.step])
    PipelineRun.objects.filter(pk=run.pk).update(
        status="running", failed=False, finished_at=None, unsettled=F("unsettled") + 1 + waiting
    )
    period_counts.run_changed(run)


def _wait_again(run: PipelineRun, plan: Compiled, step: str) -> int:
    """Make the steps pending that did not start and depend on `step`, directly or through each other. Return how many.

    Those that come only after steps which continued without it keep their state: nothing that they wait for will settle.
    """
    unmade = Q(status=StepState.SKIPPED) | Q(status=StepState.FAILED, activity_id=None, branches=None)
    rows = StepRun.objects.filter(unmade, run_id=run.pk, step__in=plan.graph.descendants_of(step), branch=0)
    again = {step}
    for each in sorted(rows.values_list("step", flat=True), key=plan.graph.rank.__getitem__):
        if not again.isdisjoint(plan.graph.dependencies_of(each)):
            again.add(each)
    return rows.filter(step__in=again).update(
        status=StepState.PENDING, settled_at=None, reason="", error=None
    )


def _reopen_whole(step: QuerySet[StepRun]) -> bool:
    """Count a reactivated branch in its step. Returns whether the step had settled."""
    step.update(unsettled_branches=F("unsettled_branches") + 1, failed_branches=F("failed_branches") - 1)
    had_settled = step.exclude(status=StepState.ACTIVE)
    return had_settled.update(status=StepState.ACTIVE, settled_at=None) > 0


def wait_from_now(run: Any, plan: Compiled, steps: Iterable[str]) -> None:
    """Start the dependency time-outs of the steps after these."""
    starting.begin_waiting(run, starting.waiting_times(plan, steps))


# Rejection in a pipeline: the step continues with its revision. If a gate rejects, the steps before it are revised.
#
# `activities.human_tasks.revisions` creates the revisions, also for work outside of pipelines.


def follow_rejection(activity: Any) -> bool:
    """Continue the run after a rejection. Returns False if there is no revision, so that the step has failed.

    The caller holds the activity's lock. Locks the run.
    """
    run = lock_runs(activity.tenant_id).get(pk=activity.pipeline_run_id)
    if run.status == "cancelled":
        _cancel_revision(activity)
    if run.status != "running":
        return True
    if activity.is_approval_gate:
        return _revise_producers(run, activity)
    return continue_with(LinkKind.REVISION_OF, activity)


def _cancel_revision(activity: Any) -> None:
    """Cancel the revision in a cancelled run, because the person who cancelled the run did not know of it."""
    successors = Activity.objects.for_tenant(activity.tenant_id).filter(
        parent_id=activity.id, link_kind=LinkKind.REVISION_OF
    )
    for revision_id in successors.values_list("pk", flat=True):
        activity_cancellation.cancel(
            activity.tenant_id, revision_id, actor="pipeline", reason="The pipeline run was cancelled."
        )


def continue_with(kind: LinkKind, activity: Any) -> bool:
    """Replace an activity in its step by its revision or successor. Returns False if there is none. The caller holds its lock."""
    successor = (
        Activity.objects.for_tenant(activity.tenant_id).filter(parent_id=activity.id, link_kind=kind).first()
    )
    if successor is None:
        return False
    steps = StepRun.objects.filter(
        run_id=activity.pipeline_run_id, step=activity.step, branch=activity.branch, activity_id=activity.id
    )
    steps.update(activity_id=successor.pk, round=successor.round)
    return True


def _revise_producers(run: PipelineRun, gate: Any) -> bool:
    """Revise every agent step that the rejected gate directly depends on, with all its branches. All gates about them ask again.

    Returns False, and revises nothing, for a gate of one item of a `for_each`, because it is not known which work that item concerns.
    """
    plan = versions.compile_version(run.version_id)
    producers = _producers_of(plan, gate.step)
    if gate.branch or not producers or gate.round >= settings.ORCHESTRATOR_MAX_ROUNDS:
        return False
    steps = StepRun.objects.filter(run_id=run.pk)
    rows = list(
        steps.filter(step__in=producers, status__in=(StepState.DONE, StepState.ACTIVE))
        .order_by("position", "branch")
        .select_for_update()
    )
    rejected = [row for row in rows if row.status == StepState.DONE and row.activity_id]
    again = {row.step for row in rejected}
    # A step that an operator has retried is at work again.
    at_work = {row.step for row in rows if row.status == StepState.ACTIVE}
    if not again and not at_work:
        return False
    _revise(run, rejected, gate)
    fanned_out = Counter(row.step for row in rejected if row.branch)
    for step, count in fanned_out.items():
        steps.filter(step=step, branch=0).update(
            status=StepState.ACTIVE, settled_at=None, unsettled_branches=F("unsettled_branches") + count
        )
    steps.filter(step=gate.step, branch=0).update(
        status=StepState.PENDING, activity_id=None, round=gate.round + 1
    )
    approved = _ask_again(run, plan, again, gate)
    wait_from_now(run, plan, again | at_work)
    runs = PipelineRun.objects.filter(pk=run.pk)
    runs.update(unsettled=F("unsettled") + len(again - at_work) + approved)
    # The gate's edited input of a replay was rejected with it. The gate asks about the revisions instead.
    runs.filter(replay_from=gate.step).update(replay_input=None)
    return True


def _producers_of(plan: Compiled, gate: str) -> list[str]:
    """Return the agent steps that a gate directly depends on."""
    return [step for step in plan.graph.dependencies_of(gate) if plan.step(step).agent_role]


def _gates_beside(plan: Compiled, gate: str, producers: Iterable[str]) -> set[str]:
    """Return the other gates that directly depend on these steps."""
    dependents = {each for step in producers for each in plan.graph.dependents_of(step)}
    return {each for each in dependents if each != gate and plan.step(each).is_approval_gate}


def _ask_again(run: PipelineRun, plan: Compiled, revised: Iterable[str], gate: Any) -> int:
    """Let the other gates about the revised steps ask again, because nobody has seen the revisions: those that are open, and those after
    which nothing has started and that were approved, or not needed according to their condition. Returns how many had settled.
    """
    states = states_of(run.pk)
    beside = StepRun.objects.filter(run_id=run.pk, step__in=_gates_beside(plan, gate.step, revised))
    rows = [
        row for row in beside.filter(branch=0).order_by("position") if _may_ask_again(run, plan, row, states)
    ]
    again = beside.filter(step__in=[row.step for row in rows])
    open_ones = again.filter(status=StepState.ACTIVE).order_by("activity_id")
    withdrawn = [pk for pk in open_ones.values_list("activity_id", flat=True) if pk is not None]
    again.filter(branch__gt=0).delete()  # Its items may be others now.
    again.update(
        status=StepState.PENDING, reason="", settled_at=None, output_ref=None, activity_id=None, round=F("round") + 1,
        branches=None, unsettled_branches=0, failed_branches=0,
    )  # fmt: skip
    for activity_id in withdrawn:
        activity_cancellation.cancel(
            run.tenant_id, activity_id, actor=gate.decided_by or starting.ACTOR,
            reason=f"Changes were requested at {plan.step(gate.step).title}, so this will be asked about the revision.",
        )  # fmt: skip
    unneeded = [row.step for row in rows if row.status == StepState.SKIPPED]
    waiting = sum(_wait_again(run, plan, step) for step in unneeded)
    return sum(row.status != StepState.ACTIVE for row in rows) + waiting


def _may_ask_again(run: PipelineRun, plan: Compiled, gate: StepRun, states: Mapping[str, str]) -> bool:
    if gate.status == StepState.SKIPPED and gate.reason == StepReason.CONDITION:
        after = StepRun.objects.filter(run_id=run.pk, step__in=plan.graph.descendants_of(gate.step))
        return not after.filter(Q(activity_id__isnull=False) | Q(branches__isnull=False)).exists()
    return gate.status == StepState.ACTIVE or (
        gate.status == StepState.DONE
        and all(states[each] == StepState.PENDING for each in plan.graph.dependents_of(gate.step))
    )


def find_gates_beside(tenant_id: UUID, activity_ids: Iterable[UUID]) -> set[UUID | None]:
    """Return the open gates that ask about the same work as these gates, because a rejection withdraws them. At most two queries."""
    open_gates = StepRun.objects.for_tenant(tenant_id).filter(
        activity_id__isnull=False, status=StepState.ACTIVE
    )
    beside = Q()
    for run_id, step, version_id in open_gates.filter(branch=0, activity_id__in=activity_ids).values_list(
        "run_id", "step", "run__version_id"
    ):
        plan = versions.compile_version(version_id)
        if gates := _gates_beside(plan, step, _producers_of(plan, step)):
            beside |= Q(run_id=run_id, step__in=gates)
    return set(open_gates.filter(beside).values_list("activity_id", flat=True)) if beside else set()


def find_revisable(tenant_id: UUID, activity_ids: Iterable[UUID]) -> set[UUID]:
    """Return the done activities of running runs on which a gate that is not decided yet depends directly. Two queries."""
    steps = StepRun.objects.for_tenant(tenant_id)
    done = list(
        steps.filter(activity_id__in=activity_ids, status=StepState.DONE, run__status="running").values_list(
            "activity_id", "run_id", "step", "run__version_id"
        )
    )
    runs = {run_id for _, run_id, _, _ in done}
    undecided = set(
        steps.filter(run_id__in=runs, status__in=(StepState.PENDING, StepState.ACTIVE)).values_list(
            "run_id", "step"
        )
    )
    revisable: set[UUID] = set()
    for activity_id, run_id, step, version_id in done:
        plan = versions.compile_version(version_id)
        gates = (each for each in plan.graph.dependents_of(step) if plan.step(each).is_approval_gate)
        if activity_id and any((run_id, gate) in undecided for gate in gates):
            revisable.add(activity_id)
    return revisable


def _revise(run: PipelineRun, rows: Sequence[StepRun], gate: Any) -> None:
    """Submit revisions of the activities of these rows."""
    activities = Activity.objects.for_tenant(run.tenant_id).in_bulk([row.activity_id for row in rows])
    notes = gate.reviewer_notes or ""
    again = [_revision_of(run, activities[row.activity_id], notes) for row in rows if row.activity_id]
    submitted = revisions.submit_revisions(run.tenant_id, again, actor=gate.decided_by or "pipeline")
    for row, revision, revision_id in zip(rows, again, submitted, strict=True):
        row.status, row.settled_at = StepState.ACTIVE, None
        row.activity_id, row.round = revision_id, revision.round
    StepRun.objects.bulk_update(rows, ("status", "settled_at", "activity_id", "round"))


def _revision_of(run: PipelineRun, activity: Activity, notes: str) -> NewActivity:
    """Return the revision for submission. In a replay the work may belong to the original run, but its revision belongs to this run."""
    revision = revisions.build_revision(activity, notes=notes)
    rules = DecisionRules.read(revision.decision_rules)
    if not rules.self_approval:
        rules = replace(rules, asked_by=run.requested_identity)
    return replace(
        revision,
        decision_rules=rules.as_json(),
        pipeline_run_id=run.pk,
        schedule_id=run.schedule_id,
        period_id=run.period_id,
    )
