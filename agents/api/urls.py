from django.urls import URLPattern, URLResolver, path
from rest_framework.routers import SimpleRouter

from agents.api.configurations import AgentConfigViewSet
from agents.api.registry import AgentViewSet, DeploymentList

router = SimpleRouter(use_regex_path=False)
router.register("agents", AgentViewSet, basename="agent")
router.register("agent-configs", AgentConfigViewSet, basename="agent-config")

urlpatterns: list[URLPattern | URLResolver] = [
    path("agents/<str:agent_role>/deployments/", DeploymentList.as_view({"get": "list"})),
    *router.urls,
]
