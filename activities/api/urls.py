from django.urls import URLPattern, URLResolver, path
from rest_framework.routers import SimpleRouter

from activities.api import activities, mailboxes, queues, run_callbacks
from activities.api.activities import ActivityViewSet
from activities.api.alerts import AlertViewSet, NotificationChannelViewSet
from activities.api.approvals import ApprovalViewSet
from activities.api.batches import BatchItemList, BatchViewSet
from activities.api.bulk import BulkItems, BulkJobViewSet, BulkOfActivities
from activities.api.dead_letters import DeadLetterGroups, DeadLetterViewSet
from activities.api.events import Events
from activities.api.inbox import InboxViewSet
from activities.api.operations import RunNow
from activities.api.subagents import SubagentTranscript, SubagentViewSet
from activities.api.webhooks import WebhookDeliveries, WebhookRedelivery, WebhookViewSet

router = SimpleRouter(use_regex_path=False)
router.register("activities", ActivityViewSet, basename="activity")
router.register("alerts", AlertViewSet, basename="alert")
router.register("approvals", ApprovalViewSet, basename="approval")
router.register("batches", BatchViewSet, basename="batch")
router.register("bulk-jobs", BulkJobViewSet, basename="bulk-job")
router.register("dead-letters", DeadLetterViewSet, basename="dead-letter")
router.register("inbox", InboxViewSet, basename="inbox")
router.register("notification-channels", NotificationChannelViewSet, basename="notification-channel")
router.register("queues", queues.QueueViewSet, basename="queue")
router.register("subagents", SubagentViewSet, basename="subagent")
router.register("webhooks", WebhookViewSet, basename="webhook")

urlpatterns: list[URLPattern | URLResolver] = [
    path("activities/<uuid:activity_id>/input/", activities.ActivityInput.as_view()),
    path("activities/<uuid:activity_id>/run-now/", RunNow.as_view()),
    path("activities/<uuid:activity_id>/output/", activities.ActivityOutput.as_view()),
    path("activities/<uuid:activity_id>/runs/", activities.ActivityRuns.as_view({"get": "list"})),
    path("activities/<uuid:activity_id>/runs/<uuid:run_id>/log/", activities.RunLogLines.as_view()),
    path("activities/<uuid:activity_id>/runs/<uuid:run_id>/transcript/", activities.RunTranscript.as_view()),
    path("activities/<uuid:activity_id>/timeline/", activities.ActivityTimeline.as_view({"get": "list"})),
    path("activities/<uuid:activity_id>/why/", activities.ActivityWhy.as_view()),
    path("batch-items/", BatchItemList.as_view({"get": "list"})),
    path("activities/bulk/", BulkOfActivities.as_view()),
    path("bulk-jobs/<uuid:job_id>/items/", BulkItems.as_view({"get": "list"})),
    path("dead-letters/groups/", DeadLetterGroups.as_view({"get": "list"})),
    path("mailboxes/", mailboxes.MailboxList.as_view({"get": "list"})),
    path("mailboxes/<str:key>/", mailboxes.MailboxDetail.as_view()),
    path("mailboxes/<str:key>/items/", mailboxes.MailboxItems.as_view({"get": "list", "post": "create"})),
    path("mailboxes/<str:key>/items/<uuid:item_id>/", mailboxes.MailboxOneItem.as_view()),
    path("mailboxes/<str:key>/items/<uuid:item_id>/retry/", mailboxes.ItemRetry.as_view()),
    path("mailboxes/<str:key>/items/<uuid:item_id>/cancel/", mailboxes.ItemCancel.as_view()),
    path("mailboxes/<str:key>/take/", mailboxes.MailboxTake.as_view()),
    path("mailboxes/<str:key>/batches/<uuid:batch_id>/completed/", mailboxes.BatchCompleted.as_view()),
    path("mailboxes/<str:key>/batches/<uuid:batch_id>/failed/", mailboxes.BatchFailed.as_view()),
    path("mailboxes/<str:key>/batches/<uuid:batch_id>/heartbeat/", mailboxes.BatchHeartbeat.as_view()),
    path("queues/", queues.QueueList.as_view({"get": "list"})),
    path("subagents/<uuid:pk>/transcript/", SubagentTranscript.as_view({"get": "retrieve"})),
    path("events/", Events.as_view()),
    path("webhooks/<uuid:webhook_id>/deliveries/", WebhookDeliveries.as_view({"get": "list"})),
    path("webhooks/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/redeliver/", WebhookRedelivery.as_view()),
    path("workers/", queues.WorkerList.as_view({"get": "list"})),
    path("agent-runs/<uuid:run_id>/", run_callbacks.RunJob.as_view()),
    path("agent-runs/<uuid:run_id>/heartbeat/", run_callbacks.RunHeartbeat.as_view()),
    path("agent-runs/<uuid:run_id>/log/", run_callbacks.RunLog.as_view()),
    path("agent-runs/<uuid:run_id>/complete/", run_callbacks.RunComplete.as_view()),
    path("agent-runs/<uuid:run_id>/fail/", run_callbacks.RunFail.as_view()),
    path("agent-runs/<uuid:run_id>/skills/<str:key>/", run_callbacks.RunSkill.as_view()),
    path("agent-runs/<uuid:run_id>/tools/<str:tool>/", run_callbacks.RunTool.as_view()),
    *router.urls,
]
