from django.urls import URLPattern, URLResolver, path
from rest_framework.routers import SimpleRouter

from tenants.api.audit_trail import AuditList
from tenants.api.channels import ChannelViewSet
from tenants.api.retention import RetentionView

router = SimpleRouter(use_regex_path=False)
router.register("channels", ChannelViewSet, basename="channel")

urlpatterns: list[URLPattern | URLResolver] = [
    path("audit/", AuditList.as_view({"get": "list"})),
    path("retention/", RetentionView.as_view()),
    *router.urls,
]
