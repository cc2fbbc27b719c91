from django.urls import URLPattern, URLResolver, path
from rest_framework.routers import SimpleRouter

from agents.api.budgets import BudgetViewSet
from agents.api.configurations import AgentConfigViewSet
from agents.api.pausing import ProviderSwitches, TenantSwitches
from agents.api.platform import ProviderList, SchedulerSettingsView
from agents.api.registry import AgentViewSet, DeploymentViewSet, RotateSecret
from agents.api.skills import SkillViewSet

router = SimpleRouter(use_regex_path=False)
router.register("agents", AgentViewSet, basename="agent")
router.register("budgets", BudgetViewSet, basename="budget")
router.register("agent-configs", AgentConfigViewSet, basename="agent-config")
router.register("skills", SkillViewSet, basename="skill")

urlpatterns: list[URLPattern | URLResolver] = [
    path(
        "agents/<str:agent_role>/deployments/", DeploymentViewSet.as_view({"get": "list", "post": "create"})
    ),
    path(
        "agents/<str:agent_role>/deployments/<uuid:pk>/promote/",
        DeploymentViewSet.as_view({"post": "promote"}),
    ),
    path("agents/<str:agent_role>/rollback/", DeploymentViewSet.as_view({"post": "roll_back"})),
    path("agent-configs/<str:role>/rotate-secret/", RotateSecret.as_view()),
    path("platform-configs/scheduler/", SchedulerSettingsView.as_view()),
    path("providers/", ProviderList.as_view({"get": "list"})),
    path("providers/<str:name>/pause/", ProviderSwitches.as_view({"post": "pause"})),
    path("providers/<str:name>/resume/", ProviderSwitches.as_view({"post": "resume"})),
    path("tenant/pause/", TenantSwitches.as_view({"post": "pause"})),
    path("tenant/resume/", TenantSwitches.as_view({"post": "resume"})),
    *router.urls,
]
