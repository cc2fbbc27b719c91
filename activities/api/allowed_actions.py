"""Lists the actions of the API that an activity allows now: for anybody with enough rights, or for one caller.

Each name is the last part of the URL to post to. A list is a snapshot: if somebody else acts first, the action is refused with 409.
Each kind of fact needs at most one query for a whole page, and none if no activity of the page depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from activities import activity_tree, dead_letters, states
from activities.api.decisions import DecisionActions, voter_of
from activities.decision_rules import DecisionRules, Voter
from activities.human_tasks import decisions
from activities.models import Activity, Vote
from activities.models.activity import in_status
from activities.reassignment import NOT_REASSIGNABLE
from activities.signals import cancelled_work_asked
from activities.states import LIVE, LinkKind, Status
from tenants.api.permissions import has_scope
from tenants.models import Role
from tenants.principals import Principal

#: By verb of the state table: the name of its action in the API, and the assignee type it is for (None: both).
_ACTIONS = {
    "take_up": ("start", "human"),
    "finish": ("complete", "human"),
    "approve": ("approve", "agent"),
    "reject": ("reject", "agent"),
    "approve_gate": ("approve", "human"),
    "reject_gate": ("reject", "human"),
    "retry": ("retry", None),
    "reassign": ("reassign", None),
    "cancel": ("cancel", None),
    "run_now": ("run-now", "agent"),
}
_DECISIONS = frozenset({"approve", "reject", "review"})
#: The statuses in which an agent's work waits for a decision, and the link of the question about it.
_REVIEWS = {Status.AWAITING_REVIEW: LinkKind.REVIEW}
_QUESTIONS = {Status.AWAITING_APPROVAL: LinkKind.GATE, **_REVIEWS}


def list_allowed_actions(principal: Principal, activities: Sequence[Activity]) -> dict[UUID, list[str]]:
    """Return the actions that the API accepts from this caller, by activity id. In the caller's `tenant_scope`."""
    if not has_scope(principal, "activities", "write"):
        return {activity.pk: [] for activity in activities}
    questions = _questions_about(principal.tenant_id, activities, _QUESTIONS)
    possible = _list_actions(principal.tenant_id, activities, questions)
    undecidable = _undecidable(voter_of(principal), principal.tenant_id, possible, questions)
    return {
        activity_id: [
            name
            for name in names
            if principal.role.includes(DecisionActions.required_role.get(name, Role.OPERATOR))
            and not (name in _DECISIONS and activity_id in undecidable)
        ]
        for activity_id, names in possible.items()
    }


def list_possible_actions(tenant_id: UUID, activities: Sequence[Activity]) -> dict[UUID, list[str]]:
    """Return the actions that are possible for somebody with all rights, by activity id. In the caller's `tenant_scope`."""
    return _list_actions(tenant_id, activities, _questions_about(tenant_id, activities, _REVIEWS))


def _list_actions(
    tenant_id: UUID, activities: Sequence[Activity], questions: Mapping[UUID, Activity]
) -> dict[UUID, list[str]]:
    resolutions = _find_resolutions(tenant_id, activities)
    replayed = _find_replayed(tenant_id, activities)
    # Each is possible in its status, but refused for these activities.
    refused = {
        "retry": _find_duplicated(tenant_id, activities) | replayed,
        "reassign": _find_cancelled(tenant_id, activities) | replayed,
    }
    return {
        activity.pk: [
            *_answers_to_agents(activity, questions, resolutions),
            *(
                name
                for name in _actions_of_status(activity)
                if name not in refused or activity.pk not in refused[name]
            ),
        ]
        for activity in activities
    }


def _actions_of_status(activity: Activity) -> Iterable[str]:
    kind, refused = activity.link_kind, set()
    if activity.assignee_type == "human":
        refused |= {"finish"} if activity_tree.is_decision(activity) else set()
        is_decided = activity.is_approval_gate or kind == LinkKind.REVIEW
        refused |= set() if is_decided else {"approve_gate", "reject_gate"}
    if kind == LinkKind.GATE:
        refused.add("cancel")  # To remove a gate, cancel the activity that waits behind it.
    if kind in NOT_REASSIGNABLE:
        refused.add("reassign")
    remarks = [verb for verb, statuses in states.REMARKS.items() if activity.status in statuses]
    for verb in (*states.verbs_from(activity.status), *remarks):
        name, assignee_type = _ACTIONS.get(verb, ("", None))
        if name and verb not in refused and assignee_type in (None, activity.assignee_type):
            yield name


def _answers_to_agents(
    activity: Activity, questions: Mapping[UUID, Activity], resolutions: set[UUID]
) -> Iterable[str]:
    """Yield the answers to a request of an agent, which the API accepts at the request and at the activity that waits for it."""
    if activity.pk in resolutions or activity.status == Status.BLOCKED:
        yield "resolve"
    question = questions.get(activity.pk)
    if question is not None and question.link_kind == LinkKind.REVIEW:
        yield "review"


def _questions_about(
    tenant_id: UUID, activities: Iterable[Activity], kinds: Mapping[Status, LinkKind]
) -> dict[UUID, Activity]:
    """Return the open item that a decision about each activity decides: the activity itself, or what it waits for in these statuses."""
    questions = {
        activity.pk: activity
        for activity in activities
        if activity.assignee_type == "human" and activity.status in activity_tree.OPEN
    }
    waiting = {
        activity.pk: kinds[Status(activity.status)] for activity in activities if activity.status in kinds
    }
    if waiting:
        children = Activity.objects.for_tenant(tenant_id).filter(
            parent_id__in=waiting, link_kind__in=set(waiting.values()), status__in=activity_tree.OPEN
        )
        for child in children.order_by("created_at", "pk"):
            if child.parent_id and child.link_kind == waiting[child.parent_id]:
                questions[child.parent_id] = child
    return questions


def _find_resolutions(tenant_id: UUID, activities: Iterable[Activity]) -> set[UUID]:
    """Return the open tasks of people that resolve a blocker, including reassigned ones."""
    tasks = [
        activity
        for activity in activities
        if activity.assignee_type == "human" and activity.status in activity_tree.OPEN
    ]
    kinds = activity_tree.kinds_of_origins(tenant_id, tasks)
    return {task_id for task_id, kind in kinds.items() if kind == LinkKind.RESOLUTION}


def _find_duplicated(tenant_id: UUID, activities: Iterable[Activity]) -> set[UUID]:
    """Return the failed activities that cannot be retried, because another one with the same dedup key is live."""
    failed = {
        activity.pk: activity.dedup_key
        for activity in activities
        if activity.status in states.MAY_RUN and activity.dedup_key is not None
    }
    if not failed:
        return set()
    live = Activity.objects.for_tenant(tenant_id).filter(in_status(*LIVE), dedup_key__in=failed.values())
    keys = set(live.values_list("dedup_key", flat=True))
    return {activity_id for activity_id, key in failed.items() if key in keys}


def _find_replayed(tenant_id: UUID, activities: Iterable[Activity]) -> set[UUID]:
    """Return the failed activities whose step cannot continue, because a replay of their pipeline run works."""
    failed = [
        activity for activity in activities if activity.pipeline_run_id and activity.status in states.MAY_RUN
    ]
    return dead_letters.find_replayed(tenant_id, failed) if failed else set()


def _find_cancelled(tenant_id: UUID, activities: Iterable[Activity]) -> set[UUID]:
    """Return the activities of steps that cannot have a successor, because their pipeline run was cancelled."""
    reassignable = states.TRANSITIONS["reassign"].sources
    of_steps = [
        activity for activity in activities if activity.pipeline_run_id and activity.status in reassignable
    ]
    if not of_steps:
        return set()
    answers: list[tuple[Any, Any]] = cancelled_work_asked.send(
        Activity, tenant_id=tenant_id, activities=of_steps
    )
    return {activity_id for _, ids in answers for activity_id in ids}


def _undecidable(
    voter: Voter, tenant_id: UUID, possible: Mapping[UUID, Sequence[str]], questions: Mapping[UUID, Activity]
) -> set[UUID]:
    """Return the activities that this caller may not decide, or has already voted on."""
    asked = {
        activity_id: questions[activity_id]
        for activity_id, names in possible.items()
        if activity_id in questions and not _DECISIONS.isdisjoint(names)
    }
    voted_on = {item.pk for item in asked.values() if DecisionRules.read(item.decision_rules).is_voted_on}
    votes = Vote.objects.for_tenant(tenant_id).filter(activity_id__in=voted_on, voter=voter.identity)
    voted = set(votes.values_list("activity_id", flat=True)) if voted_on else set()
    return {
        activity_id
        for activity_id, item in asked.items()
        if item.pk in voted or not decisions.may_decide(item, voter)
    }
