"""The groups of operations, and the table of all of them."""

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
    """Everything that a client can do, by group."""

    def __init__(self, door: D) -> None:
        self._door: D = door
        self.activities: Activities[D] = Activities(door)
        self.agent_configs: AgentConfigs[D] = AgentConfigs(door)
        self.agents: Agents[D] = Agents(door)
        self.alerts: Alerts[D] = Alerts(door)
        self.approvals: Approvals[D] = Approvals(door)
        self.audit: Audit[D] = Audit(door)
        self.batches: Batches[D] = Batches(door)
        self.budgets: Budgets[D] = Budgets(door)
        self.bulk_jobs: BulkJobs[D] = BulkJobs(door)
        self.channels: Channels[D] = Channels(door)
        self.datasets: Datasets[D] = Datasets(door)
        self.dead_letters: DeadLetters[D] = DeadLetters(door)
        self.deliverable_periods: DeliverablePeriods[D] = DeliverablePeriods(door)
        self.deliverables: Deliverables[D] = Deliverables(door)
        self.events: Events[D] = Events(door)
        self.inbox: Inbox[D] = Inbox(door)
        self.mailboxes: Mailboxes[D] = Mailboxes(door)
        self.notification_channels: NotificationChannels[D] = NotificationChannels(door)
        self.pipeline_runs: PipelineRuns[D] = PipelineRuns(door)
        self.pipelines: Pipelines[D] = Pipelines(door)
        self.platform_configs: PlatformConfigs[D] = PlatformConfigs(door)
        self.providers: Providers[D] = Providers(door)
        self.queues: Queues[D] = Queues(door)
        self.retention: Retention[D] = Retention(door)
        self.schedules: Schedules[D] = Schedules(door)
        self.skills: Skills[D] = Skills(door)
        self.subagents: Subagents[D] = Subagents(door)
        self.templates: Templates[D] = Templates(door)
        self.usage: Usage[D] = Usage(door)
        self.webhooks: Webhooks[D] = Webhooks(door)
        self.workers: Workers[D] = Workers(door)

    def operations(self) -> Iterator[tuple[str, Operation[Any]]]:
        """Every operation under the name by which it is called, such as `activities.approve`."""
        for name, group in vars(self).items():
            if isinstance(group, Resource):
                for operation in group.operations():
                    yield f"{name}.{operation.described.__name__}", operation
