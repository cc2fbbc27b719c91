"""The inbox: lists the items that wait for people, and decides many of them in one call."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, ClassVar
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities import selectors, wait_reasons
from activities.api.activities import InboxFilter
from activities.api.allowed_actions import list_allowed_actions
from activities.api.decisions import LONGEST_NOTES, answer
from activities.api.serializers import InboxItemSerializer, link_of
from activities.exceptions import ActivityError, AlreadyDecided, NotFound
from activities.human_tasks import approvals
from activities.models import Activity
from tenants.api import problems
from tenants.api.documentation import ProblemSerializer, posting
from tenants.api.problems import problem_of
from tenants.api.serializers import OPTIONAL, Identifier, OneOf, StrictSerializer, Text, Whole, read
from tenants.api.views import ListResource, describe_resource
from tenants.context import APP
from tenants.exceptions import PreconditionFailed
from tenants.models import Role

MOST_AT_ONCE = 500
FINAL = frozenset({AlreadyDecided.code, NotFound.code})  # of the locked items of one call
DECISIONS = {
    "approved": "approve", "rejected": "reject", "approve": "approve", "reject": "reject",
    "resolved": "resolve", "resolve": "resolve", "done": "complete", "complete": "complete",
}  # fmt: skip


class ItemSerializer(StrictSerializer):
    """A decision about one item. `notes` are required to reject, and to resolve a blocker."""

    id = Identifier()
    decision = OneOf(choices=list(DECISIONS))
    notes = Text(allow_blank=True, max_length=LONGEST_NOTES, **OPTIONAL)
    chosen_option = Text(max_length=200, **OPTIONAL)
    version = Whole(
        min_value=1,
        help_text=(
            "The version of the item that the caller has read. If the item has changed since then, its result is "
            "a problem with status 412."
        ),
        **OPTIONAL,
    )

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        decision = DECISIONS.get(attrs.get("decision", ""))
        errors: dict[str, Any] = {}
        if decision in ("reject", "resolve") and not attrs.get("notes"):
            errors["notes"] = [f"is required to {decision}: the agent works by it"]
        if decision in ("resolve", "complete") and "chosen_option" in attrs:
            errors["chosen_option"] = ["is for approvals and rejections"]
        return errors

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        return {**attrs, "decision": DECISIONS[attrs["decision"]]}


class DecisionsSerializer(StrictSerializer):
    """Decisions about several items."""

    items = serializers.ListField(child=ItemSerializer(), allow_empty=False, max_length=MOST_AT_ONCE)


class DecisionResultSerializer(serializers.Serializer[Any]):
    """The result of one decision: the new status of the activity, or why the decision was refused."""

    id = serializers.UUIDField()
    ok = serializers.BooleanField()
    status = serializers.CharField(allow_null=True)
    link = serializers.CharField()
    problem = ProblemSerializer(allow_null=True)


class DecisionResultsSerializer(serializers.Serializer[Any]):
    results = DecisionResultSerializer(many=True)


@describe_resource(many="Everything that waits for people, most urgent first")
class InboxViewSet(ListResource):
    queryset = Activity.objects.defer("input", "retry")
    serializer_class = InboxItemSerializer
    filterset_class = InboxFilter
    search_fields = ("name", "description")
    ordering_fields = ("priority", "created_at", "due_at")
    ordering = ("priority", "created_at", "id")
    scope = "activities"
    required_role: ClassVar[dict[str, Role]] = {"decide": Role.REVIEWER}

    def get_queryset(self) -> QuerySet[Any]:
        rows = super().get_queryset().filter(selectors.OPEN_FOR_PEOPLE).select_related("parent")
        return rows.annotate(kind=selectors.KIND_OF_ITEM)

    def show(self, rows: Any, *, many: bool = False) -> Any:
        context = {
            "waiting": wait_reasons.explain_many(self.tenant_id, rows),
            "allowed_actions": list_allowed_actions(self.principal, rows),
        }
        return InboxItemSerializer(rows, many=many, context=context).data

    @posting("Decide many items at once", DecisionsSerializer, DecisionResultsSerializer, filters=False)
    @action(detail=False, methods=["post"])
    def decide(self, request: Request) -> Response:
        """The decisions are independent: if one comes too late, its result says so, and the others still take effect."""
        items = read(DecisionsSerializer, request.data)["items"]
        # Take all locks first and in one order, because concurrent decisions about the same items could deadlock otherwise.
        approvals.lock_concerned_by(self.tenant_id, {item["id"] for item in items})
        rows = Activity.objects.for_tenant(self.tenant_id).filter(pk__in=[item["id"] for item in items])
        runs = dict(rows.values_list("pk", "pipeline_run_id"))
        order = sorted(range(len(items)), key=lambda index: (str(runs.get(items[index]["id"])), index))
        results: dict[int, dict[str, Any]] = {}
        # Refusals that apply to every further decision about the same item.
        final: dict[UUID, dict[str, Any]] = {}
        for index in order:
            item_id = items[index]["id"]
            results[index] = final.get(item_id) or self._result(items[index])
            if (results[index]["problem"] or {}).get("code") in FINAL:
                final[item_id] = results[index]
        self.audited_detail = {
            "decided": {
                str(items[index]["id"]): items[index]["decision"] for index in order if results[index]["ok"]
            }
        }
        return Response({"results": [results[index] for index in range(len(items))]})

    def _result(self, item: Mapping[str, Any]) -> dict[str, Any]:
        result = {"id": item["id"], "link": link_of(item["id"])}
        try:
            with transaction.atomic(using=APP):
                self._refuse_changed(item)
                decided = answer(
                    self.tenant_id, item["id"], item["decision"], by=self.principal, body=dict(item)
                )
        except (ActivityError, PreconditionFailed) as error:
            problem = problems.body_of(problem_of(error), self.request)
            return {**result, "ok": False, "status": getattr(error, "current", None), "problem": problem}
        return {**result, "ok": True, "status": decided.status, "problem": None}

    def _refuse_changed(self, item: Mapping[str, Any]) -> None:
        """Raise if the item has another version than the caller saw. Its lock is held, so it cannot change before the decision."""
        if "version" not in item:
            return
        rows = Activity.objects.for_tenant(self.tenant_id).filter(pk=item["id"])
        version = rows.values_list("version", flat=True).first()
        if version is not None and version != item["version"]:
            raise PreconditionFailed(
                f"The item has changed: it is at version {version} now. Read it again before you decide."
            )
