"""Valid requests by the name of their operation, for tests that go through all operations."""

from __future__ import annotations

from typing import Any

from tests.tickers import body as schedule

BODIES: dict[str, Any] = {
    "activities_create": {"name": "x", "agent_role": "qa"},
    "activities_bulk_create": {"action": "cancel", "filter": {"step": "none"}, "dry_run": True},
    "activities_reassign_create": {"agent_role": "seo", "reason": "Busy."},
    "activities_reject_create": {"notes": "Again."},
    "activities_resolve_create": {"note": "Done."},
    "activities_partial_update": {"priority": 5},
    "activities_run_now_create": {"reason": "A customer waits."},
    "activities_review_create": {"approved": True},
    "agent_configs_update": {"max_concurrency": 2},
    "agents_create": {"role": "clerk", "name": "Clerk", "endpoint": "https://1.1.1.1/clerk"},
    "agents_deployments_create": {"version": "1.0.0", "environment": "production"},
    "agents_update": {"name": "Scribe"},
    "agents_partial_update": {"model": "m"},
    "approvals_create": {"type": "content", "title": "May it?"},
    "approvals_decide_create": {"decision": "approved"},
    "budgets_create": {"name": "Some", "cap": 5, "period": "day", "agent_role": "seo"},
    "budgets_update": {"name": "Some", "cap": 7},
    "channels_create": {"kind": "ads", "name": "More ads"},
    "channels_update": {"kind": "ads", "name": "Ads"},
    "datasets_create": {"name": "more", "fields": {"id": "string"}},
    "datasets_rows_create": {"rows": [{"id": "y", "n": 2}]},
    "datasets_update": {"fields": {"id": "string", "n": "integer"}},
    "dead_letters_dismiss_create": {"filter": {"agent_role": "none"}, "reason": "Old."},
    "dead_letters_replay_create": {"filter": {"agent_role": "none"}},
    "deliverable_periods_plan_create": {"plan": {"items": []}},
    "deliverables_create": {"key": "other", "name": "Other", "pipelines": ["flow"]},
    "deliverables_update": {"name": "Blog", "pipelines": ["flow"]},
    "inbox_decide_create": {"items": [{"id": "0192f000-0000-7000-8000-000000000000", "decision": "approved"}]},
    "mailboxes_batches_failed_create": {"error": "It broke."},
    "mailboxes_items_create": {"kind": "message", "text": "Hello."},
    "mailboxes_take_create": {"consumer": "somebody"},
    "notification_channels_create": {
        "kind": "email", "name": "More", "target": "more@example.com", "kinds": ["dead_letter"],
    },
    "notification_channels_update": {"name": "Ops", "kinds": ["dead_letter"]},
    "pipeline_runs_replay_create": {"from_step": "a"},
    "pipeline_runs_bulk_create": {"action": "cancel", "ids": ["00000000-0000-7000-8000-000000000000"]},
    "pipelines_create": {"key": "more", "name": "More", "steps": [{"id": "a", "agent_role": "qa"}]},
    "pipelines_update": {"name": "Flow", "steps": [{"id": "a", "agent_role": "qa"}]},
    "platform_configs_scheduler_update": {},
    "schedules_create": schedule(name="Nightly"),
    "schedules_partial_update": {"enabled": False},
    "schedules_preview_create": schedule(),
    "schedules_update": schedule(),
    "skills_create": {"key": "more", "name": "More", "content": "Know this."},
    "skills_update": {"name": "Tone", "content": "Be kind."},
    "subagents_create": {"subagent_type": "qa", "prompt": "Look."},
    "templates_create": {"key": "more", "name": "More", "agent_role": "qa"},
    "templates_update": {"name": "T", "agent_role": "qa"},
    "webhooks_create": {"url": "https://1.1.1.1/more", "description": "More"},
    "webhooks_update": {"url": "https://1.1.1.1/events", "description": "All"},
}  # fmt: skip

#: Operations below the address of an object that do not change the object.
CHANGES_NOTHING_READ = {
    "agents_check_create": "checks whether the agent answers",
    "deliverables_start_period_create": "creates a period",
    "mailboxes_batches_completed_create": "a batch belongs to its consumer by its lease, and cannot be read",
    "mailboxes_batches_failed_create": "the same",
    "mailboxes_batches_heartbeat_create": "the same",
    "mailboxes_items_create": "creates an item",
    "mailboxes_take_create": "creates a batch",
    "notification_channels_test_create": "sends a message",
    "providers_pause_create": "a provider belongs to the platform and is not an object of the tenant",
    "providers_resume_create": "the same",
    "queues_pause_create": "a queue has figures and is not an object",
    "queues_resume_create": "the same",
    "schedules_run_create": "creates an execution",
    "webhooks_deliveries_redeliver_create": "sends a message",
    "tenant_pause_create": "the tenant cannot be read",
    "tenant_resume_create": "the same",
    "webhooks_test_create": "sends a message",
}

#: Operations that cannot all succeed in one world, because each ends what others need.
SUCCEEDS_ONLY_IN_A_STATE = {
    "activities_approve_create", "activities_complete_create", "activities_reassign_create", "activities_reject_create",
    "activities_resolve_create", "activities_retry_create", "activities_review_create", "activities_start_create",
    "activities_cancel_create", "activities_run_now_create", "agents_deployments_promote_create", "agents_rollback_create",
    "approvals_withdraw_create",
    "bulk_jobs_cancel_create", "channels_reactivate_create", "dead_letters_replay_one", "deliverable_periods_plan_create",
    "notification_channels_renew_secret_create", "pipeline_runs_replay_create", "agents_check_create", "pipeline_runs_cancel_create",
    "deliverable_periods_cancel_create", "notification_channels_test_create", "schedules_run_create",
    "mailboxes_batches_failed_create", "mailboxes_batches_heartbeat_create", "mailboxes_items_retry_create",
    "mailboxes_items_cancel_create",
}  # fmt: skip
