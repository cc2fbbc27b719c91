"""Models of activities and related tables. Import them from this package, not from its modules."""

from activities.models.activity import Activity, ActivityEvent, OutputSpool
from activities.models.alert import Alert, AlertDelivery, NotificationChannel
from activities.models.batch import BatchItem, ProviderBatch
from activities.models.bulk import BulkItem, BulkJob
from activities.models.dead_letter import DeadLetter
from activities.models.decision import Approval, ApprovalLink, Deadline, HeldAnswer, SnoozedItem, Vote
from activities.models.mailbox import Mailbox, MailboxBatch, MailboxItem, Subagent
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
from activities.models.run import ActivityRun, ToolCall, Wake, WorkerProcess
