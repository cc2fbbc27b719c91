from django.urls import URLPattern, URLResolver, path
from rest_framework.routers import SimpleRouter

from activities.api import details, queues, run_callbacks, skills, tools
from activities.api.activities import ActivityViewSet
from activities.api.alerts import AlertViewSet
from activities.api.approvals import ApprovalViewSet
from activities.api.dead_letter_groups import DeadLetterGroups
from activities.api.dead_letters import DeadLetterViewSet
from activities.api.inbox import InboxViewSet
from activities.api.notification_channels import NotificationChannelViewSet

router = SimpleRouter(use_regex_path=False)
router.register("activities", ActivityViewSet, basename="activity")
router.register("alerts", AlertViewSet, basename="alert")
router.register("approvals", ApprovalViewSet, basename="approval")
router.register("dead-letters", DeadLetterViewSet, basename="dead-letter")
router.register("inbox", InboxViewSet, basename="inbox")
router.register("notification-channels", NotificationChannelViewSet, basename="notification-channel")
router.register("queues", queues.QueueViewSet, basename="queue")

urlpatterns: list[URLPattern | URLResolver] = [
    path("activities/<uuid:activity_id>/output/", details.ActivityOutput.as_view()),
    path("activities/<uuid:activity_id>/runs/", details.ActivityRuns.as_view({"get": "list"})),
    path("activities/<uuid:activity_id>/timeline/", details.ActivityTimeline.as_view({"get": "list"})),
    path("activities/<uuid:activity_id>/why/", details.ActivityWhy.as_view()),
    path("dead-letters/groups/", DeadLetterGroups.as_view({"get": "list"})),
    path("queues/", queues.QueueList.as_view({"get": "list"})),
    path("workers/", queues.WorkerList.as_view({"get": "list"})),
    path("agent-runs/<uuid:run_id>/", run_callbacks.RunJob.as_view()),
    path("agent-runs/<uuid:run_id>/heartbeat/", run_callbacks.RunHeartbeat.as_view()),
    path("agent-runs/<uuid:run_id>/complete/", run_callbacks.RunComplete.as_view()),
    path("agent-runs/<uuid:run_id>/fail/", run_callbacks.RunFail.as_view()),
    path("agent-runs/<uuid:run_id>/skills/<str:key>/", skills.RunSkill.as_view()),
    path("agent-runs/<uuid:run_id>/tools/<str:tool>/", tools.RunTool.as_view()),
    *router.urls,
]
