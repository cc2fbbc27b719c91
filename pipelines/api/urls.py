from django.urls import URLPattern, URLResolver, path
from rest_framework.routers import SimpleRouter

from pipelines.api import executions
from pipelines.api.datasets import DatasetRows, DatasetViewSet
from pipelines.api.deliverables import DeliverableViewSet, PeriodCancellation, PeriodViewSet
from pipelines.api.pipelines import PipelineViewSet, TemplateViewSet
from pipelines.api.runs import PipelineRunViewSet, RunPicture, RunReplay, RunsInBulk
from pipelines.api.schedules import SchedulePreview, ScheduleViewSet, UnsavedPreview
from pipelines.api.usage import UsageReport

router = SimpleRouter(use_regex_path=False)
router.register("datasets", DatasetViewSet, basename="dataset")
router.register("templates", TemplateViewSet, basename="template")
router.register("pipelines", PipelineViewSet, basename="pipeline")
router.register("pipeline-runs", PipelineRunViewSet, basename="pipeline-run")
router.register("deliverables", DeliverableViewSet, basename="deliverable")
router.register("deliverable-periods", PeriodViewSet, basename="deliverable-period")
router.register("schedules", ScheduleViewSet, basename="schedule")

EXECUTION = "schedules/<uuid:schedule_id>/executions/<uuid:execution_id>/"

urlpatterns: list[URLPattern | URLResolver] = [
    path("datasets/<str:name>/rows/", DatasetRows.as_view({"get": "list", "post": "create"})),
    path("datasets/<str:name>/rows/<path:key>/", DatasetRows.as_view({"delete": "destroy"})),
    path("deliverable-periods/<uuid:period_id>/cancel/", PeriodCancellation.as_view()),
    path("pipeline-runs/bulk/", RunsInBulk.as_view()),
    path("pipeline-runs/<uuid:run_id>/picture/", RunPicture.as_view()),
    path("pipeline-runs/<uuid:run_id>/replay/", RunReplay.as_view()),
    path("schedules/preview/", UnsavedPreview.as_view()),
    path("schedules/<uuid:schedule_id>/preview/", SchedulePreview.as_view()),
    path("schedules/<uuid:schedule_id>/firings/", executions.Firings.as_view({"get": "list"})),
    path("schedules/<uuid:schedule_id>/executions/", executions.Executions.as_view({"get": "list"})),
    path(EXECUTION, executions.Executions.as_view({"get": "retrieve"})),
    path(f"{EXECUTION}jobs/", executions.ExecutionJobs.as_view({"get": "list"})),
    path(f"{EXECUTION}cancel/", executions.ExecutionCancellation.as_view()),
    path("usage/", UsageReport.as_view()),
    *router.urls,
]
