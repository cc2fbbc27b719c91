"""The groups of operations, and a table of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic

from orchestrator_client.calls import D, Resource
from orchestrator_client.operations import Operation
from orchestrator_client.resources.activities import Activities, BulkJobs
from orchestrator_client.resources.agents import AgentConfigs, Agents, PlatformConfigs, Skills
from orchestrator_client.resources.conversations import Mailboxes, Subagents
from orchestrator_client.resources.operating import (
    Audit,
    Batches,
    Budgets,
    DeadLetters,
    Providers,
    Queues,
    Retention,
    Usage,
    Workers,
)
from orchestrator_client.resources.people import Alerts, Approvals, Channels, Inbox, NotificationChannels
from orchestrator_client.resources.pipelines import (
    DeliverablePeriods,
    Deliverables,
    PipelineRuns,
    Pipelines,
    Templates,
)
from orchestrator_client.resources.schedules import Datasets, Schedules
from orchestrator_client.resources.subscriptions import Events, Webhooks


class Resources(Generic[D]):
    """All operations of a client, by group."""

    def __init__(self, sender: D) -> None:
        self._sender: D = sender
        self.activities: Activities[D] = Activities(sender)
        self.agent_configs: AgentConfigs[D] = AgentConfigs(sender)
        self.agents: Agents[D] = Agents(sender)
        self.alerts: Alerts[D] = Alerts(sender)
        self.approvals: Approvals[D] = Approvals(sender)
        self.audit: Audit[D] = Audit(sender)
        self.batches: Batches[D] = Batches(sender)
        self.budgets: Budgets[D] = Budgets(sender)
        self.bulk_jobs: BulkJobs[D] = BulkJobs(sender)
        self.channels: Channels[D] = Channels(sender)
        self.datasets: Datasets[D] = Datasets(sender)
        self.dead_letters: DeadLetters[D] = DeadLetters(sender)
        self.deliverable_periods: DeliverablePeriods[D] = DeliverablePeriods(sender)
        self.deliverables: Deliverables[D] = Deliverables(sender)
        self.events: Events[D] = Events(sender)
        self.inbox: Inbox[D] = Inbox(sender)
        self.mailboxes: Mailboxes[D] = Mailboxes(sender)
        self.notification_channels: NotificationChannels[D] = NotificationChannels(sender)
        self.pipeline_runs: PipelineRuns[D] = PipelineRuns(sender)
        self.pipelines: Pipelines[D] = Pipelines(sender)
        self.platform_configs: PlatformConfigs[D] = PlatformConfigs(sender)
        self.providers: Providers[D] = Providers(sender)
        self.queues: Queues[D] = Queues(sender)
        self.retention: Retention[D] = Retention(sender)
        self.schedules: Schedules[D] = Schedules(sender)
        self.skills: Skills[D] = Skills(sender)
        self.subagents: Subagents[D] = Subagents(sender)
        self.templates: Templates[D] = Templates(sender)
        self.usage: Usage[D] = Usage(sender)
        self.webhooks: Webhooks[D] = Webhooks(sender)
        self.workers: Workers[D] = Workers(sender)

    def operations(self) -> Iterator[tuple[str, Operation[Any]]]:
        """Yield every operation with its name, such as `activities.approve`."""
        for name, group in vars(self).items():
            if isinstance(group, Resource):
                for operation in group.operations():
                    yield f"{name}.{operation.described.__name__}", operation
