"""Admin of activities: their state, input, output, wait reason and timeline, and the actions of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.enums import ActionVariant

from activities import cancellation, outputs, reassignment, selectors, suspension, wait_reasons
from activities.admin import columns
from activities.admin.columns import PageByTenant, RoleFilter, SituationFilter, StatusFilter
from activities.api.allowed_actions import list_possible_actions
from activities.decision_rules import DecisionRules, Voter
from activities.exceptions import OutputUnavailable
from activities.human_tasks import decisions
from activities.models import Activity, Approval
from activities.selectors import Moment
from agents import configuration
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import NOTHING, RecordAdmin, actor_of, as_json, badge, identity_of, link_of, link_to

# Actions of operators. Each calls the same function as the API, in the activity's tenant, with the operator as the actor.


def is_offered(path: str) -> Callable[[Activity], bool]:
    """Return whether an activity allows an action now, by the rules of the API, whose names the paths of the buttons are."""
    return lambda activity: path in list_possible_actions(activity.tenant_id, [activity])[activity.pk]


def _options(rows: Sequence[Activity | Approval]) -> list[tuple[str, Any]]:
    """Return the options that any of these questions offers, and before them an empty one, so that nobody chooses by accident."""
    offered = dict.fromkeys(option for row in rows for option in _options_of(row))
    return [("", "Choose an option"), *((option, option) for option in offered)] if offered else []


def _options_of(row: Activity | Approval) -> Sequence[str]:
    return row.options if isinstance(row, Approval) else DecisionRules.read(row.decision_rules).options


def _approve(request: HttpRequest, row: Activity | Approval, notes: str, *, choice: str | None = None) -> Any:
    # A question that does not offer the option is refused, with its own options in the message.
    option = choice if choice in _options_of(row) else None
    return decisions.approve(
        row.tenant_id, row.pk, actor=voter_of(request), notes=notes, chosen_option=option
    )


def voter_of(request: HttpRequest) -> Voter:
    return Voter(actor_of(request), identity=identity_of(request))


AGENT, PERSON = "agent:", "human:"


def _assignees(rows: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the possible assignees: the agent roles of the registry, the human roles of members and of these rows, and the usual one."""
    human_roles = {"editor", *(row.human_role for row in rows if row.human_role)}
    human_roles.update(
        *(selectors.list_human_roles(tenant_id) for tenant_id in {row.tenant_id for row in rows})
    )
    people = [(f"{PERSON}{role}", role) for role in sorted(human_roles)]
    agents = [(f"{AGENT}{role}", role) for role in sorted(configuration.list_roles())]
    return [("People", people), ("Agents", agents)]


def _reassign(request: HttpRequest, activity: Activity, notes: str, *, choice: str) -> Any:
    kind, _, role = choice.partition(":")
    assignee = {"agent_role": role} if f"{kind}:" == AGENT else {"human_role": role}
    return reassignment.reassign(
        activity.tenant_id, activity.pk, actor=actor_of(request), reason=notes, **assignee
    )


APPROVE = Action(
    "approve",
    "Approved",
    "The results are accepted, and the work that depends on them continues.",
    notes="Notes for the record",
    choice="Chosen option",
    choices=_options,
    icon="check",
    variant=ActionVariant.SUCCESS,
    offered=is_offered("approve"),
    do=_approve,
)
REJECT = Action(
    "reject",
    "Rejected",
    "The agent does the work again and gets your notes.",
    notes="Requested changes",
    notes_needed=True,
    danger=True,
    icon="undo",
    variant=ActionVariant.WARNING,
    offered=is_offered("reject"),
    do=lambda request, row, notes: decisions.reject(
        row.tenant_id, row.pk, actor=voter_of(request), notes=notes
    ),
)
CANCEL = Action(
    "cancel",
    "Cancelled",
    "These activities end without a result. Agents at work on them are told to stop.",
    title="Cancel activities",
    notes="Reason",
    danger=True,
    icon="cancel",
    button="Cancel",
    variant=ActionVariant.DANGER,
    offered=is_offered("cancel"),
    do=lambda request, row, notes: cancellation.cancel(
        row.tenant_id, row.pk, actor=actor_of(request), reason=notes
    ),
)
RETRY = Action(
    "retry",
    "Retried",
    "Failed activities start again with all their attempts, for the reason of their last run.",
    icon="replay",
    offered=is_offered("retry"),
    do=lambda request, row, notes: cancellation.retry(row.tenant_id, row.pk, actor=actor_of(request)),
)
RESOLVE = Action(
    "resolve",
    "Resolved",
    "The blocked agents start again and get your notes.",
    notes="How the blocker was removed",
    notes_needed=True,
    icon="lock_open",
    offered=is_offered("resolve"),
    do=lambda request, row, notes: suspension.resolve_blocker(
        row.tenant_id, row.pk, actor=actor_of(request), note=notes
    ),
)
REASSIGN = Action(
    "reassign",
    "Reassigned",
    "Another agent or a person gets the work, as a new activity. Whatever waits for the old activity gets the result of the new one.",
    notes="Reason",
    notes_needed=True,
    choice="New assignee",
    choices=_assignees,
    icon="forward",
    offered=is_offered("reassign"),
    do=_reassign,
)


CHILDREN_SHOWN = 50


#: What a page says before the holder of a wait reason, by the reason's code; "Held by" otherwise.
_HOLDERS = {"human": "Asked:", "dependency": "It waits for:"}


class ActivityList(PageByTenant):
    """A page of activities with their wait reasons."""

    def add_facts(self, tenant_id: UUID, rows: list[Activity]) -> None:
        waits = wait_reasons.explain_many(tenant_id, rows)
        for activity in rows:
            activity.wait = waits[activity.pk]  # type: ignore[attr-defined]  # read by the column


@admin.register(Activity)
class ActivityAdmin(ActionsAdmin, RecordAdmin):
    list_display = ("name", "state", "tenant", "assignee", "priority", "wait", "created_at")
    list_filter = (SituationFilter, ("status", StatusFilter), RoleFilter, "assignee_type")
    search_fields = ("name", "group_key", "dedup_key")
    stands_for = {
        "input_link": "input_ref", "output_link": "output_ref", "pipeline_run": "pipeline_run_id",
        "branch": "pipeline_run_id", "round": "pipeline_run_id",
    }  # fmt: skip
    row_actions = (APPROVE, REJECT, RESOLVE, RETRY, REASSIGN, CANCEL)
    change_form_after_template = "admin/activities/activity/timeline.html"
    fieldsets = (
        (None, {"fields": ("state", "why", "tenant", "assignee", "description")}),
        (
            "Input",
            {"fields": ("wake_reason", "params", "input", "input_link", "reviewer_notes", "metadata"), "classes": ("tab",)},
        ),
        (
            "Result",
            {
                "fields": ("output_link", "error", "decided_by", "decided_at", "chosen_option", "blocker_type", "blocker_message",
                           "blocked_at", "cancel_reason", "reassign_reason"),
                "classes": ("tab",),
            },
        ),
        (
            "Context",
            {
                "fields": ("pipeline_run", "step", "branch", "round", "parent_link", "link_kind", "children_links", "deliverable_id",
                           "group_key", "dedup_key"),
                "classes": ("tab",),
            },
        ),
        (
            "Engine",
            {
                "fields": ("id", "priority", "attempts", "max_attempts", "stalls", "fence", "version", "retry", "timeout_seconds",
                           "requires_approval", "is_approval_gate", "not_before", "expires_at", "due_at", "created_at", "assigned_at",
                           "started_at", "finished_at"),
                "classes": ("tab",),
            },
        ),
    )  # fmt: skip
    readonly_fields = tuple(name for _, options in fieldsets for name in options["fields"])

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[PageByTenant]:
        return ActivityList

    def get_custom_urls(self) -> tuple[tuple[str, str, Any], ...]:
        return (
            ("<uuid:activity_id>/output/<uuid:output_id>/", "activities_activity_output", self.show_output),
        )

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        activity = self.get_object(request, object_id)
        extra = {"timeline": _timeline(activity), "title": activity.name} if activity else {}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **extra})

    def show_output(
        self, request: HttpRequest, activity_id: UUID, output_id: UUID, **kwargs: Any
    ) -> HttpResponse:
        """Show an output as text. It is a separate page because MongoDB may be slow."""
        activity = self.get_object(request, str(activity_id))
        if activity is None or not self.has_view_permission(request, activity):
            raise Http404
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "activity": activity,
            "title": f"Output of {activity.name}",
        }
        try:
            output = outputs.read(activity.tenant_id, output_id)
            context |= {
                "output": output,
                "data": as_json(output.data) if output and output.data is not None else "",
            }
        except OutputUnavailable as error:
            context["unavailable"] = str(error)
        return TemplateResponse(request, "admin/activities/activity/output.html", context)

    @display(description="Status", ordering="status")
    def state(self, activity: Activity) -> SafeString:
        return badge(activity.status, columns.STATUS.get(activity.status, ""))

    @display(description="Assignee")
    def assignee(self, activity: Activity) -> SafeString:
        icon = "person" if activity.assignee_type == "human" else "smart_toy"
        role = activity.human_role if activity.assignee_type == "human" else activity.agent_role
        return format_html(
            '<span class="material-symbols-outlined orc-icon" title="{}">{}</span>{}',
            activity.assignee_type,
            icon,
            role,
        )

    @display(description="Waits for")
    def wait(self, activity: Activity) -> SafeString:
        reason = activity.wait  # type: ignore[attr-defined]  # set by ActivityList
        if reason.code is None:
            return NOTHING
        return format_html('<span title="{}">{}</span>', reason.detail, reason.code.replace("_", " "))

    @display(description="Wait reason")
    def why(self, activity: Activity) -> SafeString:
        reason = wait_reasons.why(activity.tenant_id, activity.pk)
        facts = [
            reason.detail,
            f"{_HOLDERS.get(reason.code or '', 'Held by')} {reason.holder}." if reason.holder else "",
            f"Place {reason.position} in its queue." if reason.position else "",
            f"About {reason.estimate_seconds:.0f} s." if reason.estimate_seconds else "",
        ]
        code = format_html("<b>{}</b> - ", reason.code.replace("_", " ")) if reason.code else ""
        return format_html("{}{}", code, " ".join(fact for fact in facts if fact))

    @display(description="Input")
    def input_link(self, activity: Activity) -> SafeString:
        return _output_link(activity, activity.input_ref)

    @display(description="Output")
    def output_link(self, activity: Activity) -> SafeString:
        return _output_link(activity, activity.output_ref)

    @display(description="Pipeline run")
    def pipeline_run(self, activity: Activity) -> SafeString:
        if activity.pipeline_run_id is None:
            return NOTHING
        # By URL only, because this app may not import pipelines.
        url = reverse("admin:pipelines_pipelinerun_change", args=[activity.pipeline_run_id])
        return format_html('<a class="text-link" href="{}">{}</a>', url, activity.pipeline_run_id)

    parent_link = link_of("parent_id", Activity, "Parent", text=lambda row: row.parent)

    @display(description="Children")
    def children_links(self, activity: Activity) -> SafeString:
        children = activity.children.order_by("pk")[:CHILDREN_SHOWN]
        rows = [(link_to(Activity, child.pk, child), child.link_kind, child.status) for child in children]
        return (
            format_html("<ul>{}</ul>", format_html_join("", "<li>{} ({}, {})</li>", rows))
            if rows
            else NOTHING
        )


def _timeline(activity: Activity) -> list[tuple[Moment, str]]:
    """Return the timeline. Each entry comes with its details as JSON, or an empty text."""
    moments = selectors.timeline(activity.tenant_id, activity.pk)
    details = [
        moment.facts.get("detail") or moment.facts.get("payload") or moment.facts.get("error")
        for moment in moments
    ]
    return [(moment, as_json(facts) if facts else "") for moment, facts in zip(moments, details, strict=True)]


def _output_link(activity: Activity, output_id: UUID | None) -> SafeString:
    if output_id is None:
        return NOTHING
    url = reverse("admin:activities_activity_output", args=[activity.pk, output_id])
    return format_html('<a class="text-link" href="{}">Open</a> <small>{}</small>', url, output_id)
