"""The pipelines and schedules of the random requests. Together they use every way in which one step follows others."""

from __future__ import annotations

from typing import Any

TOPICS = "steps.plan.data.topics"

PIPELINES: dict[str, list[dict[str, Any]]] = {
    "chained": [
        {"id": "first", "agent_role": "qa", "depends_on": []},
        {"id": "second", "agent_role": "qa", "depends_on": ["first"], "retry": {"max_attempts": 2, "base_seconds": 1}},
        {"id": "third", "agent_role": "dev", "depends_on": ["second"], "requires_approval": True},
    ],
    "fanned": [
        {"id": "plan", "agent_role": "qa", "depends_on": []},
        {"id": "write", "agent_role": "dev", "depends_on": ["plan"], "for_each": TOPICS, "when": "item.weight >= 1"},
        {"id": "check", "human_role": "editor", "is_approval_gate": True, "depends_on": ["write"], "due_seconds": 7200,
         "on_timeout": "reject"},
        {"id": "report", "agent_role": "seo", "depends_on": ["write", "check"], "on_upstream_failure": "continue"},
    ],
    "fanned-approved": [
        {"id": "plan", "agent_role": "qa", "depends_on": []},
        {"id": "write", "agent_role": "dev", "depends_on": ["plan"], "for_each": TOPICS, "requires_approval": True},
        {"id": "sum", "agent_role": "seo", "depends_on": ["write"], "on_upstream_failure": "skip"},
        {"id": "after", "agent_role": "qa", "depends_on": ["sum"]},
    ],
    "gated-twice": [
        {"id": "draft", "agent_role": "qa", "depends_on": []},
        {"id": "art", "agent_role": "dev", "depends_on": []},
        {"id": "legal", "human_role": "editor", "is_approval_gate": True, "depends_on": ["draft"]},
        {"id": "brand", "human_role": "editor", "is_approval_gate": True, "depends_on": ["draft", "art"], "quorum": 2},
        {"id": "publish", "agent_role": "seo", "depends_on": ["legal", "brand"], "dependency_timeout_seconds": 7200},
        {"id": "share", "agent_role": "qa", "depends_on": ["legal"], "on_upstream_failure": "continue"},
    ],
    "gated-each": [
        {"id": "plan", "agent_role": "qa", "depends_on": []},
        {"id": "write", "agent_role": "dev", "depends_on": ["plan"], "for_each": TOPICS, "on_upstream_failure": "continue"},
        {"id": "each", "human_role": "editor", "is_approval_gate": True, "depends_on": ["write"], "for_each": TOPICS},
        {"id": "all", "human_role": "editor", "is_approval_gate": True, "depends_on": ["write"]},
        {"id": "end", "agent_role": "seo", "depends_on": ["each", "all"], "on_upstream_failure": "skip"},
    ],
    "conditional": [
        {"id": "rate", "agent_role": "qa", "depends_on": []},
        {"id": "good", "agent_role": "dev", "depends_on": ["rate"], "when": "steps.rate.data.score > 1"},
        {"id": "bad", "agent_role": "seo", "depends_on": ["rate"], "when": "not (steps.rate.data.score > 1)"},
        {"id": "join", "agent_role": "qa", "depends_on": ["good", "bad"]},
        {"id": "hand", "human_role": "editor", "depends_on": ["join"], "on_upstream_failure": "skip"},
    ],
    "timed": [
        {"id": "left", "agent_role": "dev", "depends_on": []},
        {"id": "right", "agent_role": "seo", "depends_on": []},
        {"id": "join", "agent_role": "qa", "depends_on": ["left", "right"], "dependency_timeout_seconds": 3600},
        {"id": "tidy", "agent_role": "qa", "depends_on": ["join"], "on_upstream_failure": "continue"},
    ],
}  # fmt: skip

SCHEDULES: dict[str, dict[str, Any]] = {
    "queued": {"target_type": "pipeline", "pipeline": "chained", "overlap": "queue_one"},
    "skipped": {"target_type": "agent", "agent_role": "qa", "overlap": "skip"},
    "replaced": {"target_type": "pipeline", "pipeline": "fanned", "overlap": "cancel_running"},
    "after-another": {
        "target_type": "agent",
        "agent_role": "dev",
        "overlap": "queue_one",
        "params": {"word": "db:words:all:word?batchSize=1&staggerDelay=1000&batch_gate=completion"},
    },
    "after-a-start": {
        "target_type": "pipeline",
        "pipeline": "conditional",
        "overlap": "skip",
        "params": {"word": "db:words:all:word?batchSize=1&staggerDelay=1000&batch_gate=start"},
    },
}
