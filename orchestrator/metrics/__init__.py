"""`/metrics` for Prometheus: figures of the whole system, read from PostgreSQL and Redis at the moment of the scrape.

No process keeps counters, so any web worker gives the same answer and a restart loses nothing. No label names a tenant: that would
make a series per customer, and show who is a customer to whoever may scrape. A tenant's figures come from the API.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from console.dependencies import ask

from . import probes
from .collector import Figures

PATIENCE_SECONDS = 5.0  # a scrape that takes longer is of no use to anybody


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Always 200: what does not answer is missing, and `orchestrator_database_up` says so."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures(ask(probes.PROBES, patience_seconds=PATIENCE_SECONDS)))
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type=content_type)
