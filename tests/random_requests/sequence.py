"""A random sequence of requests, agents' answers and faults at one tenant, and how everything comes to rest afterwards.

The state machine compares with a model, and therefore knows few rules. This knows nearly all of them and has no model: a request may be
refused, but no answer is a server error, the invariants hold after each step, and in the end all work must have ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib.auth.models import User
from django.http import Http404

from activities import background_tasks, relay, tasks
from activities.admission import Exchange, limits, rebuilding, scripts
from activities.admission.exchange import Offer, find_unknown
from activities.maintenance import invariants, recovery
from activities.models import Activity, BulkJob, HeldAnswer, Wake
from activities.states import SETTLED
from agents import configuration
from agents.contracts import Accepted, AgentRequest, Completed, Output, Parked
from agents.exceptions import AgentRateLimited, PermanentAgentError, RetryableAgentError, SessionInvalid
from console.inbox import snooze, undo
from console.page import Refused
from pipelines import period_counts
from pipelines.models import DeliverablePeriod, ScheduleExecution
from tenants import clock, members
from tenants.context import system_scope, tenant_scope
from tenants.models import Membership, Reservation, Tenant
from tenants.principals import Principal
from tenants.redis import client
from tests import batching
from tests.accepted_work import AgentClient
from tests.engine import Engine, simultaneously
from tests.random_requests.passing_time import pass_time
from tests.random_requests.pipelines import PIPELINES, SCHEDULES
from tests.random_requests.provider import KEY, MODEL, Provider
from tests.upkeep import run_due_jobs

API = "/api/v1/"
PLANNER = "activity-planner"
ROLES = ("qa", "dev", "seo")
BOXES = ("consumed", "taken")  # mailboxes of an agent, and of a program
RETAINED = (
    "activities", "pipeline_runs", "dead_letters", "mailboxes", "bulk_jobs", "schedule_executions", "schedule_firings", "agent_sessions",
)  # fmt: skip
PLANNED = ["chained", "fanned"]  # pipelines that a plan may use
CALLING_OUT = {"agents-health", "provider-probes"}  # background tasks
WHILE_SUSPENDED = {
    "work", "upkeep", "time_passes", "a_worker_dies", "redis_is_wiped", "redis_is_saved_or_restored", "agents_report",
}  # fmt: skip

#: What may happen at the same moment, with weights.
DRAWN = {
    "somebody_submits": 1, "somebody_acts": 5, "somebody_answers": 2, "somebody_acts_on_a_run": 2, "a_message_is_sent": 1,
    "somebody_asks": 1,
}  # fmt: skip


class Sequence:
    """The tenant, the people who send requests, and what has happened so far."""

    def __init__(self, engine: Engine, tenant: Tenant, person: Callable[[str], Any], seed: int) -> None:
        self.engine, self.tenant = engine, tenant
        self.random = random.Random(seed)
        self.people = [person("ann"), person("ben")]
        self.admin = self.people[0]
        # Enough for any quorum, even if some have voted against.
        self.judges = [*self.people, *map(person, ("eva", "kim", "noa"))]
        self.log: list[str] = []
        self.accepted: list[AgentClient] = []
        self.batches: list[str] = []
        self.provider = Provider(self.random)
        self.sessions: dict[str, Any] = {}  # the role and the matter of each
        self.strange_sessions: list[str] = []  # that runs about other matters were given
        self.snapshot: dict[bytes, bytes] = {}  # of Redis
        self.texts = 0
        self.calm = self.suspended = False
        self.drawn: list[tuple[Any, ...]] | None = None  # requests that will be sent later
        engine.agent.behaviour = self.answer
        engine.serve(tenant, retry={"strategy": "fixed", "base_seconds": 60, "jitter": 0.0})
        for key, steps in PIPELINES.items():
            self.create("put", f"pipelines/{key}/", {"key": key, "name": key, "steps": steps})
        self.create("post", "datasets/", {"name": "words", "fields": {"word": "string"},
                                          "rows": [{"word": each} for each in ("one", "two", "three")]})  # fmt: skip
        self.create("post", "budgets/", {"name": "all", "cap": 1000, "period": "month"})
        for name, fields in SCHEDULES.items():
            hourly = {"name": name, "repeat": "repeating", "cron": "0 * * * *", "catch_up": {"up_to": 2}}
            self.create("post", "schedules/", {**hourly, **fields})
        self.create("post", "deliverables/", {"key": "blog", "name": "Blog", "pipelines": PLANNED})
        self.visitor = self.sign_in("visitor")

    def sign_in(self, name: str) -> Principal:
        """Return somebody who works in the console, where answers can be undone."""
        user, _ = User.objects.get_or_create(username=name)
        with tenant_scope(self.tenant.pk):
            Membership.objects.create(tenant=self.tenant, user=user, role="admin")
        return members.principal_of(user, self.tenant.slug)

    # Choosing and calling.

    def create(self, method: str, path: str, body: Any) -> None:
        answer = getattr(self.admin, method)(f"{API}{path}", body)
        assert answer.status_code < 300, answer.content

    def call(self, who: Any, method: str, path: str, body: Any = None) -> Any:
        if self.drawn is not None:
            self.drawn.append((who, method, path, body))
            return None
        answer = getattr(who, method)(f"{API}{path}", {} if body is None else body)
        why = "" if answer.status_code < 300 else answer.content.decode()[:160]
        self.log.append(f"  {method} {path} {body or ''} -> {answer.status_code} {why}")
        assert answer.status_code < 500, answer.content
        return answer

    def list(self, path: str, **query: Any) -> list[dict[str, Any]]:
        answer = self.admin.get(f"{API}{path}", {"limit": 100, **query})
        if answer.status_code in (401, 404):  # the tenant is suspended, or there is no such mailbox yet
            return []
        assert answer.status_code == 200, answer.content
        rows: list[dict[str, Any]] = answer.json()["results"]
        return rows

    def pick(self, options: Any) -> Any:
        options = list(options)
        return self.random.choice(options) if options else None

    def maybe(self, share: float = 0.3) -> bool:
        return self.random.random() < share

    def some(self, **members: Any) -> dict[str, Any]:
        """Return about every fourth of the members, each with one of its values."""
        return {name: self.pick(values) for name, values in members.items() if self.maybe(0.25)}

    def text(self) -> str:
        self.texts += 1
        return f"text {self.texts}"

    @staticmethod
    def later(hours: float) -> str:
        return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()

    def someone(self) -> Any:
        return self.pick(self.people)

    # Work and decisions.

    def somebody_submits(self) -> None:
        body: dict[str, Any] = {"name": self.text()}
        if self.maybe(0.8):
            body |= {"agent_role": self.pick(ROLES)}
            body |= self.some(
                group_key=("one", "two"), requires_approval=(True,), max_attempts=(1, 2, 3), mailbox=BOXES,
                files=(["src/a.py"], ["src/**"], ["docs/*", "src/b.py"]),
            )  # fmt: skip
            if "group_key" in body:
                body |= self.some(group_scope=("tenant",))
            if self.maybe(0.1) and (source := self.pick(self.list("activities/", status="done"))):
                body["input_ref"] = source["output_ref"]
        else:
            body |= {"human_role": "editor", "is_approval_gate": self.maybe(0.5)}
        if body.get("requires_approval") or body.get("is_approval_gate"):
            body |= self.question()
        body |= self.some(
            dedup_key=("same", "other"),
            not_before=(self.later(0.5), self.later(5), self.later(30)),
            expires_at=(self.later(0.5), self.later(5), self.later(40)),
            priority=(1, 5, 10, 15, 20),
        )
        self.call(self.someone(), "post", "activities/", body)

    def question(self) -> dict[str, Any]:
        timed = {"due_seconds": 7200, "on_timeout": self.pick(("approve", "reject", "escalate"))}
        if timed["on_timeout"] == "escalate":
            timed["escalation"] = [{"after_seconds": 10800, "human_role": "manager"}]
        return {**(timed if self.maybe() else {}), **self.some(quorum=(2,), self_approval=(False,))}

    def somebody_starts_a_pipeline(self) -> None:
        self.call(
            self.admin, "post", f"pipelines/{self.pick(PIPELINES)}/runs/", self.some(priority=(1, 10, 20))
        )

    def somebody_acts(self) -> None:
        """Mostly what the answer of the API says is allowed, and at times anything else."""
        rows = self.list("activities/")
        unfinished = [row for row in rows if row["status"] not in SETTLED]
        row = self.pick(unfinished if unfinished and self.maybe(0.9) else rows)
        if row is None:
            return
        every = (
            "approve",
            "reject",
            "cancel",
            "complete",
            "reassign",
            "resolve",
            "retry",
            "review",
            "run-now",
            "start",
            "change",
        )
        allowed = [name.replace("_", "-") for name in row["allowed_actions"]]
        self.act(row, self.pick(allowed) if allowed and self.maybe(0.8) else self.pick(every), self.someone())

    def act(self, row: dict[str, Any], verb: str, who: Any) -> None:
        bodies: dict[str, dict[str, Any]] = {
            "reject": {"notes": "because"},
            "cancel": {"reason": "enough"},
            "complete": {"note": "ready"},
            "resolve": {"note": "gone"},
            "review": {"approved": self.calm or self.maybe(0.7), "feedback": "because"},
            "run-now": {"reason": "soon"},
            "reassign": {
                "reason": "other",
                **self.pick(({"agent_role": "seo"}, {"agent_role": "qa"}, {"human_role": "editor"})),
            },
        }
        if verb in ("change", "reschedule"):
            changes = self.some(
                priority=(1, 10, 20),
                not_before=(None, self.later(0.5), self.later(10)),
                expires_at=(None, self.later(20)),
                due_at=(None, self.later(3)),
            )
            self.call(who, "patch", f"activities/{row['id']}/", changes)
        else:
            self.call(who, "post", f"activities/{row['id']}/{verb}/", bodies.get(verb))

    def somebody_asks(self) -> None:
        rows = self.list("activities/")
        about = [row["id"] for row in self.random.sample(rows, min(len(rows), self.random.randint(0, 2)))]
        body = {"type": "content", "title": self.text(), "activity_ids": about, **self.question()}
        self.call(self.someone(), "post", "approvals/", body)

    def somebody_answers(self) -> None:
        if (row := self.pick(self.list("approvals/", status="pending"))) is None:
            return
        if self.maybe(0.2):
            self.call(self.someone(), "post", f"approvals/{row['id']}/withdraw/", {"reason": "no need"})
        else:
            decision = {"decision": self.pick(("approve", "reject")), "notes": "because"}
            self.call(self.someone(), "post", f"approvals/{row['id']}/decide/", decision)

    def somebody_acts_on_a_run(self) -> None:
        if (row := self.pick(self.list("pipeline-runs/"))) is None:
            return
        if row["status"] != "running":
            body = {"from_step": self.pick(row["steps"])["step"], **self.some(input=({"content": "other"},))}
            self.call(self.admin, "post", f"pipeline-runs/{row['id']}/replay/", body)
        elif self.maybe(0.4):
            self.call(self.admin, "post", f"pipeline-runs/{row['id']}/cancel/", {"reason": "enough"})

    def the_inbox_is_answered(self) -> None:
        """Decide several items together, or answer or snooze one in the console."""
        rows = self.list("inbox/")
        some = self.random.sample(rows, min(len(rows), self.random.randint(1, 3)))
        if not some:
            return
        if self.maybe(0.4):
            items = [{"id": row["id"], "decision": self.pick(("approve", "reject", "complete", "resolve")), "notes": "because",
                      **self.some(version=(row["version"], 1))} for row in some]  # fmt: skip
            self.call(self.someone(), "post", "inbox/decide/", {"items": items})
            return
        row = some[0]
        item_id, version = UUID(row["id"]), row["version"]
        form = {
            "action": self.pick(("approve", "reject", "complete", "resolve", "retry", "cancel")),
            "version": str(version),
            **dict.fromkeys(("notes", "note", "reason"), "because"),
        }
        if self.maybe(0.7):
            self.in_console(
                f"holds {form['action']} of {item_id}", lambda: undo.hold(self.visitor, item_id, form)
            )
        else:
            until = clock.now() + timedelta(hours=self.pick((0.5, 30)))
            self.in_console(
                f"snoozes {item_id}",
                lambda: snooze.snooze(self.visitor, item_id, version=version, until=until),
            )

    def an_answer_is_undone(self) -> None:
        with tenant_scope(self.tenant.pk):
            held = list(HeldAnswer.objects.values_list("pk", flat=True))
        if held:
            self.in_console("undoes", lambda: undo.take_back(self.visitor, [self.pick(held)]))

    def in_console(self, what: str, act: Callable[[], Any]) -> None:
        try:
            self.log.append(f"  the visitor {what} -> {act()}")
        except (Refused, Http404) as refusal:
            self.log.append(f"  the visitor {what} -> {type(refusal).__name__} {refusal}")

    def several_runs_are_acted_on(self) -> None:
        ids = [row["id"] for row in self.list("pipeline-runs/") if self.maybe()]
        action = self.pick(({"action": "cancel", "reason": "enough"}, {"action": "replay"}))
        if ids:
            self.call(self.admin, "post", "pipeline-runs/bulk/", {**action, "ids": ids[:5]})

    def a_dead_letter_is_replayed(self) -> None:
        if row := self.pick(self.list("dead-letters/")):
            self.call(self.admin, "post", f"dead-letters/{row['id']}/replay/")

    def a_pipeline_is_saved(self) -> None:
        """Save a new version, without the last step if that is possible, and at times disable the pipeline."""
        key = self.pick(PIPELINES)
        steps = PIPELINES[key] if self.maybe() else PIPELINES[key][:-1]
        body = {"key": key, "name": self.text(), "steps": steps, "enabled": self.maybe(0.8)}
        self.call(self.admin, "put", f"pipelines/{key}/", body)

    def a_deliverable_is_used(self) -> None:
        (deliverable,) = self.list("deliverables/")
        period = self.pick(self.list("deliverable-periods/"))
        what = self.pick(("start", "start", "plan", "plan", "cancel", "change"))
        if what == "start":
            self.call(self.admin, "post", f"deliverables/{deliverable['id']}/start-period/")
        elif what == "change":
            changes = self.some(status=("active", "paused"), target=(1, 5))
            body = {"name": "Blog", "pipelines": PLANNED, **changes}
            self.call(self.admin, "put", f"deliverables/{deliverable['id']}/", body)
        elif period:
            body = self.pick(({}, {"plan": self.plan()})) if what == "plan" else {"reason": "enough"}
            self.call(self.admin, "post", f"deliverable-periods/{period['id']}/{what}/", body)

    def plan(self) -> dict[str, Any]:
        items = [
            {"pipeline": self.pick(PLANNED), **self.some(not_before=(self.later(3),), priority=(1,))}
            for _ in range(2)
        ]
        return {"items": items}

    def somebody_acts_on_many(self) -> None:
        what = self.pick(("cancel", "retry", "set_priority", "reassign", "replay", "dismiss", "stop"))
        if what == "stop":
            for row in self.list("bulk-jobs/"):
                self.call(self.admin, "post", f"bulk-jobs/{row['id']}/cancel/")
            return
        if what in ("replay", "dismiss"):
            more = {"reason": "enough"} if what == "dismiss" else self.some(per_second=(1,))
            self.call(self.admin, "post", f"dead-letters/{what}/", {"filter": {}, **more})
            return
        statuses = (
            ["failed"]
            if what == "retry"
            else [self.pick(("created", "awaiting_approval", "blocked", "failed"))]
        )
        body = {"action": what, "filter": {"agent_role": self.pick(ROLES), "status": statuses}}
        body |= {
            "cancel": {"reason": "enough"},
            "set_priority": {"priority": self.pick((1, 10))},
            "reassign": {"reason": "other", "agent_role": self.pick(ROLES)},
        }.get(what, {})
        counted = self.call(self.admin, "post", "activities/bulk/", {**body, "dry_run": True})
        if counted.status_code == 200 and "count" in counted.json():
            body["expected_count"] = counted.json()["count"]
            self.call(self.admin, "post", "activities/bulk/", body)

    # Mailboxes, subagents and schedules.

    def a_message_is_sent(self) -> None:
        box = self.pick(BOXES)
        body = {"kind": self.pick(("message", "task_notification", "overlay_action")), "text": self.text()}
        body |= {"agent_role": "seo"} if box == "consumed" else {}
        body |= self.some(
            run_after=(self.later(1),),
            max_attempts=(1,),
            client_message_id=("same", "other"),
            scope_key=("scope",),
        )
        self.call(self.admin, "post", f"mailboxes/{box}/items/", body)

    def a_consumer_works(self) -> None:
        what = self.pick(("take", "completed", "failed", "retry", "cancel"))
        box = self.pick(BOXES)
        if what == "take":
            answer = self.call(
                self.admin, "post", f"mailboxes/{box}/take/", {"consumer": "desk", "window_ms": 0}
            )
            if answer.status_code == 200 and "batch_id" in answer.json():
                self.batches.append(f"mailboxes/{box}/batches/{answer.json()['batch_id']}/")
        elif what in ("retry", "cancel"):
            if row := self.pick(self.list(f"mailboxes/{box}/items/")):
                self.call(self.admin, "post", f"mailboxes/{box}/items/{row['id']}/{what}/")
        elif batch := self.pick(self.batches):
            body = (
                {"result": {"said": "done"}}
                if what == "completed"
                else {"error": "no", "retryable": self.maybe(0.5)}
            )
            self.call(self.admin, "post", f"{batch}{what}/", body)

    def a_subagent_is_used(self) -> None:
        if self.maybe(0.4) and (row := self.pick(self.list("subagents/"))):
            self.call(self.admin, "post", f"subagents/{row['subagent_id']}/cancel/", {"reason": "enough"})
        else:
            body = {"subagent_type": self.pick(ROLES), "prompt": self.text(), "tool_call_id": self.text()}
            self.call(self.admin, "post", "subagents/", {**body, **self.some(parent_mailbox=BOXES)})

    def a_schedule_is_used(self) -> None:
        if (row := self.pick(self.list("schedules/"))) is None:
            return
        path = f"schedules/{row['id']}/"
        if self.maybe(0.5):
            self.call(self.admin, "post", f"{path}run/")
        elif self.maybe(0.5):
            changes = ({"overlap": "allow"}, {"overlap": "queue_one"}, {"overlap": "cancel_running"}, {"priority": 1},
                       {"jitter_seconds": 30}, {"enabled": True}, {"enabled": False})  # fmt: skip
            self.call(self.admin, "patch", path, self.pick(changes))
        elif execution := self.pick(self.list(f"{path}executions/")):
            self.call(self.admin, "post", f"{path}executions/{execution['id']}/cancel/", {"reason": "enough"})

    # Limits, pauses, budgets and retention.

    def a_pause_begins_or_ends(self) -> None:
        schedules = [f"schedules/{row['id']}/" for row in self.list("schedules/")]
        pauses = ("tenant/", f"queues/{self.pick(ROLES)}/", f"pipelines/{self.pick(PIPELINES)}/", *schedules)
        self.call(self.admin, "post", f"{self.pick(pauses)}{self.pick(('pause', 'resume'))}/")
        self.limits_change()

    def a_role_changes(self) -> None:
        role = self.pick(ROLES)
        now = self.admin.get(f"{API}agent-configs/{role}/").json()
        kept = {name: now[name] for name in ("adapter", "endpoint", "backlog", "enabled", "max_concurrency", "max_concurrency_per_group",
                                             "rate", "retry") if now[name] is not None}  # fmt: skip
        changes = (
            *({"max_concurrency": cap} for cap in (1, 2, None)),
            *({"max_concurrency_per_group": cap} for cap in (1, None)),
            *({"enabled": enabled} for enabled in (True, False)),
            *(
                {"backlog": {"max": 2, "on_full": policy}}
                for policy in ("reject", "drop_oldest", "drop_lowest")
            ),
            *({"rate": rate} for rate in ({}, {"per_second": 0.001, "capacity": 1})),
            {"backlog": {}},
        )
        self.call(self.admin, "put", f"agent-configs/{role}/", {**kept, **self.pick(changes)})
        self.limits_change()

    def a_budget_changes(self) -> None:
        row = self.pick(self.list("budgets/"))
        if row is None or self.maybe():
            body = {
                "name": self.text(),
                "cap": self.pick(("0.005", "5")),
                "period": self.pick(("day", "month", "total")),
            }
            self.call(
                self.admin, "post", "budgets/", {**body, "agent_role": self.pick(ROLES), "estimate": "0.002"}
            )
        elif self.maybe(0.2):
            self.call(self.admin, "delete", f"budgets/{row['id']}/")
        else:
            self.set_cap(row, self.pick(("0.001", "0.02", "1000")))

    def set_cap(self, row: dict[str, Any], cap: str) -> None:
        kept = {name: row[name] for name in ("name", "period", "agent_role")}
        self.call(self.admin, "put", f"budgets/{row['id']}/", {**kept, "cap": cap})

    def a_tenant_is_suspended(self) -> None:
        self.suspended = True
        self.change_tenant(is_active=False)

    def the_tenant_is_active_again(self) -> None:
        self.suspended = False
        self.change_tenant(is_active=True)

    def a_tenant_gets_a_cap(self) -> None:
        self.change_tenant(max_concurrency=self.pick((None, 1, 2)))

    def change_tenant(self, **values: Any) -> None:
        with system_scope():
            Tenant.objects.filter(pk=self.tenant.pk).update(**values)
        self.limits_change()

    def limits_change(self) -> None:
        configuration.forget()
        limits.refresh()
        relay.release_and_acquire(Exchange())

    def old_rows_are_deleted(self) -> None:
        kinds = {kind: self.pick((3, 5, 30)) for kind in RETAINED if self.maybe(0.7)}
        self.call(self.admin, "put", "retention/", {"kinds": kinds})
        self.hours_pass(24 * self.pick((5, 20, 60)))

    # Agents.

    #: How agents answer, with weights.
    ANSWERS: dict[str, int] = {
        "result": 8, "accept": 3, "again": 2, "never": 2, "tool": 3, "limited": 1, "park": 3, "unknown": 1,
    }  # fmt: skip

    def answer(self, request: AgentRequest) -> Any:
        how = (
            "result" if self.calm else self.random.choices(list(self.ANSWERS), list(self.ANSWERS.values()))[0]
        )
        self.log.append(f"    {request.pipeline_step or 'work'} {request.activity_id}: {how}")
        self.check_session(request)
        if how == "again":
            raise RetryableAgentError("not now", code="again")
        if how == "never":
            raise PermanentAgentError("no", code="never")
        if how == "limited":
            raise AgentRateLimited("too fast", retry_after=60)
        if how == "park":
            return Parked(
                KEY, MODEL, {"prompt": request.name}, clock.now() + timedelta(hours=self.pick((0.1, 20)))
            )
        if how == "unknown":
            raise SessionInvalid("no such conversation")
        agent = AgentClient(request)
        session_id = request.session_id if self.maybe(0.8) else None
        if session_id is None and self.maybe(0.6):
            session_id = self.text().replace(" ", "-")
            self.sessions[session_id] = self.matter_of(request)
        if how == "accept":
            self.accepted.append(agent)
            return Accepted(session_id)
        if how == "tool":
            self.use_a_tool(agent)
        return Completed(
            Output(content=self.text(), data=self.data_of(request.pipeline_step, request.agent_role)),
            session_id=session_id,
        )

    def check_session(self, request: AgentRequest) -> None:
        """A run continues only a conversation of its role about the same matter. Noted, because an error would be taken for the agent's."""
        if request.session_id is not None and self.sessions[request.session_id] != self.matter_of(request):
            self.strange_sessions.append(request.session_id)

    def matter_of(self, request: AgentRequest) -> Any:
        with tenant_scope(self.tenant.pk):
            activity = Activity.objects.get(pk=request.activity_id)
        return request.agent_role, activity.mailbox_id or activity.deliverable_id

    def data_of(self, step: str | None, role: str = "") -> Any:
        if role == PLANNER:
            return self.plan() if self.calm or self.maybe(0.6) else {"items": []}
        if step == "plan":
            topics = [{"weight": self.random.randint(0, 3)} for _ in range(self.random.randint(0, 3))]
            return {"topics" if self.calm or self.maybe(0.9) else "none": topics}
        return {"score": 5 if self.calm else self.pick((0, 5, "text"))} if step == "rate" else {"words": 300}

    def use_a_tool(self, agent: AgentClient) -> None:
        whom = self.pick(({"agent_role": self.pick(ROLES)}, {"human_role": "editor"}))
        tool, arguments = self.pick((
            ("report_blocker", {"type": "api_outage", "message": self.text()}),
            ("request_human_review", {"question": self.text()}),
            ("create_subtask", {"name": self.text(), "description": "", "blocking": self.maybe(0.6), **whom}),
            ("create_approval", {"type": "brand_direction", "title": self.text(), "activity_ids": [str(agent.activity_id)]}),
            ("reassign_task", {"reason": self.text(), **whom}),
        ))  # fmt: skip
        self.note(f"tool {tool}", agent.use(tool, **arguments))

    def agents_report(self) -> None:
        if (agent := self.pick(self.accepted)) is None:
            return
        what = self.pick(("complete", "complete", "fail", "heartbeat", "tool"))
        if what == "tool":
            self.use_a_tool(agent)
            return
        data = self.data_of(agent.request.pipeline_step, agent.request.agent_role)
        bodies = {
            "complete": {"output": {"content": self.text(), "data": data}, "usage": {"cost_usd": "0.003"}},
            "fail": {"error": {"code": "again", "message": "no", "retryable": self.maybe(0.5)}},
        }
        self.note(what, agent.post(what, bodies.get(what)))

    def note(self, what: str, answer: Any) -> None:
        self.log.append(f"    an agent reports: {what} -> {answer.status_code} {answer.content[:150]}")
        assert answer.status_code < 500, answer.content

    # Workers, upkeep and faults.

    def work(self, most: int = 6) -> int:
        """Deliver messages, of which some are lost and some arrive twice. Returns how many there were."""
        count = 0
        while count < most and (message := self.engine.take()) is not None:
            count += 1
            for _ in range(1 if self.calm else self.pick((0, 1, 1, 1, 1, 1, 1, 1, 1, 2))):
                tasks.run(**message)
        self.engine.wait_for_relief()
        return count

    def upkeep(self) -> None:
        run_due_jobs()
        batching.make_due(self.tenant)
        self.run_background_tasks()
        relay.flush()

    def run_background_tasks(self) -> list[str]:
        """Run every task that has waiting rows until none has. Returns those that never finish."""
        unfinished: list[str] = []
        for _ in range(20):
            unfinished = []
            for task in background_tasks._tasks.values():
                if task.waiting is None or task.name in CALLING_OUT:
                    continue
                with system_scope():
                    is_waiting = task.waiting().exists()
                if is_waiting:
                    unfinished.append(task.name)
                    task.work(**task.arguments)
            if not unfinished:
                break
        return unfinished

    def time_passes(self) -> None:
        self.hours_pass(self.pick((0.02, 0.2, 1.1, 11)))

    def hours_pass(self, hours: float) -> None:
        self.log.append(f"  {hours} hours pass")
        relay.flush()
        pass_time(int(hours * 3600))
        self.redis_is_wiped()
        self.upkeep()

    def redis_is_wiped(self) -> None:
        relay.flush()
        configuration.forget()
        client().flushdb()
        rebuilding.rebuild()
        relay.release_and_acquire(Exchange())

    def redis_is_saved_or_restored(self) -> None:
        """Save a snapshot of Redis, or go back to an older one, as after a restart of a server that saves seldom."""
        relay.flush()
        if not self.snapshot or self.maybe():
            self.snapshot = {key: client().dump(key) for key in client().scan_iter()}
            return
        client().flushdb()
        for key, value in self.snapshot.items():
            client().restore(key, 0, value)
        self.snapshot = {}
        configuration.forget()
        self.mend_admission()

    def mend_admission(self) -> None:
        """Do what the leader does with admission until everything was seen twice, and check the result."""
        audit = rebuilding.SlotAudit()
        limits.refresh()
        for _ in range(3):
            release, again = audit.compare()
            relay.publish(again)
            relay.hand_over(release)
            relay.flush()
        recovery.offer_forgotten(limit=10_000)
        relay.flush()
        with system_scope():
            due = Wake.objects.filter(state="pending", due_at=None)
            waiting = recovery._claimable(due.values_list("activity_id", flat=True))
            runs = set(rebuilding._live_runs().values_list("activity_id", "grant"))
        slots = {
            (slot.activity_id, slot.grant) for slot in scripts.audit(withdraw_orphans=False) if slot.started
        }
        assert slots == runs, (slots - runs, runs - slots)
        assert not find_unknown([Offer.of(activity) for activity in waiting])

    def a_worker_dies(self) -> None:
        self.engine.replace_worker()
        recovery.reclaim_runs_of_ended_workers()

    def several_act_at_once(self) -> None:
        """Send requests, deliver messages and run upkeep at the same moment. The choice is repeatable, the interleaving is not."""
        requests = self.drawn_requests()
        actions = [lambda each=each: self.call(*each) for each in requests]
        actions += [
            lambda each=each: tasks.run(**each) for each in (self.engine.take(), self.engine.take()) if each
        ]
        actions += [self.run_background_tasks] if self.maybe() else []
        actions += [self.agents_report] if self.accepted and self.maybe() else []
        for outcome in simultaneously(*actions) if actions else ():
            if isinstance(outcome, BaseException):
                raise outcome
        self.engine.wait_for_relief()

    def drawn_requests(self) -> list[tuple[Any, ...]]:
        """Return two or three requests that were drawn but not sent, at times one of them twice."""
        drawn: list[tuple[Any, ...]] = []
        self.drawn = drawn
        for name in self.random.choices(list(DRAWN), list(DRAWN.values()), k=self.random.choice((2, 3))):
            getattr(self, name)()
        self.drawn = None
        if drawn and self.maybe(0.5):
            drawn.append(drawn[-1])
        return drawn

    # The sequence.

    STEPS: dict[str, int] = {
        "somebody_submits": 8, "somebody_starts_a_pipeline": 5, "somebody_acts": 12, "somebody_asks": 2, "somebody_answers": 3,
        "somebody_acts_on_a_run": 4, "somebody_acts_on_many": 2, "the_inbox_is_answered": 4, "an_answer_is_undone": 1,
        "several_runs_are_acted_on": 1, "a_dead_letter_is_replayed": 1, "a_pipeline_is_saved": 1, "a_deliverable_is_used": 3,
        "a_message_is_sent": 3, "a_consumer_works": 2, "a_subagent_is_used": 1, "a_schedule_is_used": 2, "a_pause_begins_or_ends": 1,
        "a_role_changes": 2, "a_budget_changes": 2, "a_tenant_is_suspended": 1, "a_tenant_gets_a_cap": 1, "old_rows_are_deleted": 1,
        "agents_report": 5, "work": 10, "upkeep": 3, "time_passes": 3, "redis_is_wiped": 1, "a_worker_dies": 1,
        "redis_is_saved_or_restored": 2,
        "several_act_at_once": 8,
    }  # fmt: skip

    def step(self) -> None:
        name = self.random.choices(list(self.STEPS), list(self.STEPS.values()))[0]
        if self.suspended and name not in WHILE_SUSPENDED:
            name = "the_tenant_is_active_again"
        self.log.append(name)
        getattr(self, name)()
        self.check()

    def check(self) -> None:
        broken = invariants.check()
        assert not broken, broken
        assert not self.strange_sessions, self.strange_sessions
        with tenant_scope(self.tenant.pk):
            figures = DeliverablePeriod.objects.order_by("pk").values_list(
                "pk", "status", "completed", "failed", "cancelled", "at_risk_reason"
            )
            counted = list(figures)
            for pk, *_ in counted:
                period_counts.recount(self.tenant.pk, pk)
            assert counted == list(figures.all())

    def come_to_rest(self) -> None:
        """Lift all limits and pauses, let agents and people answer everything, and check that all work ends."""
        self.log.append("everything comes to rest")
        self.calm = self.provider.calm = True
        self.change_tenant(is_active=True, max_concurrency=None)
        schedules = [f"schedules/{row['id']}/" for row in self.list("schedules/")]
        for path in (
            "tenant/",
            *(f"queues/{role}/" for role in ROLES),
            *(f"pipelines/{key}/" for key in PIPELINES),
            *schedules,
        ):
            self.call(self.admin, "post", f"{path}resume/")
        for path in schedules:
            self.call(self.admin, "patch", path, {"enabled": False})
        for row in self.list("budgets/"):
            if self.maybe(0.5):
                self.call(self.admin, "delete", f"budgets/{row['id']}/")
            else:
                self.set_cap(row, "100000")
        unlimited = {"max_concurrency": None, "max_concurrency_per_group": None}
        self.engine.serve(self.tenant, retry={}, backlog={}, rate={}, enabled=True, **unlimited)
        for turn in range(12):
            self.hours_pass(30 if turn % 3 == 2 else 0.6)
            self.a_worker_dies()
            self.upkeep()
            while self.work(100):
                self.upkeep()
            self.answer_everything()
            self.upkeep()
            if not self.unfinished():
                break
        self.check_rest()

    def answer_everything(self) -> None:
        for row in (
            *self.list("activities/", status="failed"),
            *self.list("activities/", status="needs_review"),
        ):
            self.act(row, "cancel", self.admin)
        verbs = {"awaiting_approval": "approve", "awaiting_review": "review", "blocked": "resolve"}
        for row in (row for status in verbs for row in self.list("activities/", status=status)):
            for who in self.judges:
                self.act(row, verbs[row["status"]], who)
        for row in (
            row for status in ("created", "in_progress") for row in self.list("activities/", status=status)
        ):
            for who in self.judges if row["assignee_type"] == "human" else ():
                self.act(
                    row,
                    "approve"
                    if "approve" in row["allowed_actions"] or row["is_approval_gate"]
                    else "complete",
                    who,
                )
                self.act(row, "resolve", who)
        for box in BOXES:
            while (
                answer := self.call(
                    self.admin, "post", f"mailboxes/{box}/take/", {"consumer": "desk", "window_ms": 0}
                )
            ).status_code == 200:
                self.call(
                    self.admin, "post", f"mailboxes/{box}/batches/{answer.json()['batch_id']}/completed/"
                )

    def unfinished(self) -> list[str]:
        rest = [
            f"{row['id']} {row['name']} is {row['status']}: {self.why(row)}"
            for row in self.list("activities/")
            if row["status"] not in SETTLED
        ]
        rest += [f"run {row['id']}: {row['steps']}" for row in self.list("pipeline-runs/", status="running")]
        with tenant_scope(self.tenant.pk):
            rest += [
                f"execution {row.pk} is {row.status}"
                for row in ScheduleExecution.objects.filter(finished_at=None)
            ]
            rest += [f"bulk job {row.pk}" for row in BulkJob.objects.filter(finished_at=None)]
            rest += [
                f"period {row.pk} is active" for row in DeliverablePeriod.objects.filter(status="active")
            ]
            rest += [f"answer {row.pk} is held" for row in HeldAnswer.objects.filter(refusal="")]
        for box in BOXES:
            items = self.list(f"mailboxes/{box}/items/")
            rest += [
                f"item {row['id']} is {row['status']}"
                for row in items
                if row["status"] in ("pending", "claimed")
            ]
        return rest

    def why(self, row: dict[str, Any]) -> Any:
        return self.admin.get(f"{API}activities/{row['id']}/why/").json()

    def check_rest(self) -> None:
        rest = self.unfinished()
        assert not rest, "\n".join(rest)
        never_finish = self.run_background_tasks()
        assert not never_finish, never_finish
        relay.flush()
        assert not scripts.audit(withdraw_orphans=False), "slots without a run"
        with tenant_scope(self.tenant.pk):
            assert not Reservation.objects.count(), "money without a run"
            assert not Activity.objects.filter(finished_at=None).count()
        broken = invariants.check(quiesced=True)
        assert not broken, broken
