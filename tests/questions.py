"""Questions to people, of each kind, created through the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from activities import dead_letters as dead_letters_escalation
from activities.decision_rules import DecisionRules
from activities.human_tasks import approvals, decisions
from activities.human_tasks.approvals import NewApproval
from activities.models import Activity, ApprovalLink
from activities.submission import NewActivity, submit
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from agents.exceptions import PermanentAgentError
from pipelines import submission, versions
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import AgentClient
from tests.engine import Engine

#: A pipeline of three steps; the second awaits approval, and the third waits for it.
ARTICLE = {
    "key": "article",
    "name": "Article",
    "steps": [
        {"id": "research", "name": "Research", "agent_role": "qa"},
        {"id": "write", "name": "Write", "agent_role": "dev", "depends_on": ["research"], "requires_approval": True},
        {"id": "publish", "name": "Publish", "agent_role": "seo", "depends_on": ["write"]},
    ],
}  # fmt: skip


@dataclass
class Questions:
    """Creates questions to people in one tenant."""

    engine: Engine
    tenant: Tenant

    def __post_init__(self) -> None:
        self.engine.serve(self.tenant)

    def newest(self, **fields: Any) -> Activity:
        """The newest open item of people."""
        with tenant_scope(self.tenant.pk):
            rows = Activity.objects.filter(
                assignee_type="human", status__in=("created", "in_progress"), **fields
            )
            found: Activity = rows.order_by("-created_at").select_related("parent")[0]
        return found

    def task(self, name: str = "Call the customer", human_role: str = "editor", **fields: Any) -> Activity:
        with tenant_scope(self.tenant.pk):
            submit([NewActivity(name=name, human_role=human_role, **fields)], actor="token:planner")
        return self.newest()

    def gate(
        self, content: str = "# Bees\n\nBees fly far.", name: str = "Summary", **fields: Any
    ) -> Activity:
        """An agent's result that waits for an approval."""
        self.engine.agent.behaviour = lambda request: Completed(Output(content=content))
        with tenant_scope(self.tenant.pk):
            submit(
                [NewActivity(name=name, agent_role="qa", requires_approval=True, **fields)],
                actor="token:planner",
            )
        self.engine.drain()
        return self.newest(link_kind="gate")

    def gate_of_step(self, behaviour: Callable[[AgentRequest], AgentResult] | None = None) -> Activity:
        """The gate behind the second step of a pipeline."""
        if behaviour is not None:
            self.engine.agent.behaviour = behaviour
        versions.save(self.tenant.pk, ARTICLE, actor="test")
        submission.start_run(self.tenant.pk, "article", submission.NewRun(), actor="token:planner")
        self.engine.drain()
        return self.newest(link_kind="gate")

    def next_round(self, gate: Activity, notes: str, content: str) -> Activity:
        """The gate behind the round that follows a rejection."""
        decisions.reject(self.tenant.pk, gate.pk, actor="user:ann", notes=notes)
        self.engine.agent.behaviour = lambda request: Completed(Output(content=content))
        self.engine.drain()
        return self.newest(link_kind="gate")

    def by_agent(
        self, tool: str, body: dict[str, Any], role: str = "dev", name: str = "Landing page", **fields: Any
    ) -> Activity:
        """A question that an agent asks by a tool while it works."""
        self.engine.agent.behaviour = lambda request: Accepted()
        with tenant_scope(self.tenant.pk):
            submit([NewActivity(name=name, agent_role=role, **fields)], actor="token:planner")
        self.engine.drain()
        answer = AgentClient(self.engine.agent.calls[-1]).post(f"tools/{tool}", body)
        assert answer.status_code in (200, 201), answer.content
        return self.newest(pk=answer.json()["id"])

    def review(
        self, question: str = "Is the tone right?", content: str | None = "Dear *customer*", **body: Any
    ) -> Activity:
        return self.by_agent("request_human_review", {"question": question, "content": content, **body})

    def blocker(
        self, message: str = "The login of the shop has expired.", type: str = "api_outage"
    ) -> Activity:
        return self.by_agent("report_blocker", {"type": type, "message": message})

    def subtask(self, name: str = "Take a photo", **body: Any) -> Activity:
        return self.by_agent(
            "create_subtask",
            {
                "name": name,
                "description": "Of the hive.",
                "human_role": "photographer",
                "blocking": True,
                **body,
            },
        )

    def approval(
        self,
        title: str = "Which direction?",
        options: tuple[str, ...] = ("Warm", "Sober"),
        linked: int = 2,
        **rules: Any,
    ) -> Activity:
        """A question about activities that have not started."""
        with tenant_scope(self.tenant.pk):
            items = [NewActivity(name=f"Page {number}", agent_role="seo") for number in range(1, linked + 1)]
            ids = [one.id for one in submit(items, actor="token:planner")]
            approval_id = approvals.open_approval(
                self.tenant.pk,
                NewApproval(
                    type="content_direction",
                    title=title,
                    description="Two **directions** are possible.",
                    rules=DecisionRules(options=options, **rules),
                ),
                actor="token:planner",
                identity="token:0",
            )
            rows = list(Activity.objects.filter(pk__in=ids).order_by("pk").select_for_update())
            approvals.link(self.tenant.pk, approval_id, rows, actor="token:planner")
        return self.newest(pk=approval_id)

    def escalation(self, message: str = "The page is gone.", **fields: Any) -> Activity:
        """Work that has failed permanently."""

        def refuse(request: AgentRequest) -> AgentResult:
            raise PermanentAgentError(message)

        self.engine.agent.behaviour = refuse
        with tenant_scope(self.tenant.pk):
            submit([NewActivity(name="Audit", agent_role="qa", **fields)], actor="token:planner")
        self.engine.drain()
        dead_letters_escalation.handle_waiting()
        return self.newest(link_kind="escalation")

    def get_linked(self, approval: Activity) -> list[UUID]:
        """The activities that an approval is about."""
        with tenant_scope(self.tenant.pk):
            links = ApprovalLink.objects.filter(approval_id=approval.pk).order_by("activity_id")
            return list(links.values_list("activity_id", flat=True))

    def get(self, activity_id: UUID) -> Activity:
        return self.engine.get(self.tenant, activity_id)
