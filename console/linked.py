"""The activities that wait for an approval, or did."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from activities.models import ApprovalLink
from pipelines.models import PipelineRun

MOST_LINKED = 100


@dataclass(frozen=True, slots=True)
class Linked:
    """An activity that waits for an approval, or did."""

    id: UUID
    name: str
    role: str
    pipeline: str
    status: str
    state: str
    reason: str


def linked_to(tenant_id: UUID, approval_id: UUID) -> list[Linked]:
    rows = ApprovalLink.objects.for_tenant(tenant_id).filter(approval_id=approval_id)
    links = list(rows.select_related("activity").order_by("activity_id")[:MOST_LINKED])
    run_ids = {link.activity.pipeline_run_id for link in links if link.activity.pipeline_run_id}
    runs = PipelineRun.objects.for_tenant(tenant_id).filter(pk__in=run_ids)
    pipelines = dict(runs.values_list("pk", "version__pipeline__name"))
    return [
        Linked(
            id=link.activity_id,
            name=link.activity.name,
            role=link.activity.agent_role or link.activity.human_role or "",
            pipeline=pipelines.get(link.activity.pipeline_run_id or tenant_id, ""),
            status=link.activity.status.replace("_", " "),
            state=link.state,
            reason=link.reason,
        )
        for link in links
    ]
