"""Models of activities and related tables. Import them from this package, not from its modules."""

from activities.models.activity import Activity
from activities.models.alert import Alert, AlertDelivery, NotificationChannel
from activities.models.batch import BatchItem, ProviderBatch
from activities.models.bulk import BulkItem, BulkJob
from activities.models.dead_letter import DeadLetter
from activities.models.decision import Approval, ApprovalLink, Deadline, Vote
from activities.models.mailbox import Mailbox, MailboxBatch, MailboxItem
from activities.models.platform import (
    Condition,
    Counter,
    CountingMark,
    FailuresInARow,
    LeaderLease,
    RepeatedSubmissions,
    SystemJob,
    TurnedAway,
)
from activities.models.run import ActivityRun, WorkerProcess

from .activity import ActivityEvent, OutputSpool
from .decision import HeldAnswer, SnoozedItem
from .mailbox import Subagent
from .run import ToolCall, Wake
