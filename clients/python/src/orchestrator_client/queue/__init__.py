"""The interface of an agent's queue, on the server's mailboxes: enqueue, take in batches, complete, fail.

`AgentQueue` uses a mailbox of the server, `InMemoryQueue` the memory of one process. `SwitchedQueue` migrates from one to the other
without losing or repeating work. `SubagentQueue` starts agents.
"""

from orchestrator_client.queue.agent_queue import AgentQueue
from orchestrator_client.queue.items import KINDS, Batch, Item, Queue, item_of
from orchestrator_client.queue.memory import InMemoryQueue
from orchestrator_client.queue.subagents import StartedSubagent, SubagentQueue
from orchestrator_client.queue.switched import PHASES, Differences, SwitchedQueue

__all__ = (
    "KINDS",
    "PHASES",
    "AgentQueue",
    "Batch",
    "Differences",
    "InMemoryQueue",
    "Item",
    "Queue",
    "StartedSubagent",
    "SubagentQueue",
    "SwitchedQueue",
    "item_of",
)
