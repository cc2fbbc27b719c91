"""Health: `/healthz` says that this process answers, `/readyz` what it can do with the servers behind it.

Both are for machines that ask often and without a login: they cost little, end within a second whatever hangs, and say nothing about
addresses or users. The web's processes keep threads for them (`orchestrator.web_worker`).
"""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from console import dependencies


@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """The process is alive. Asks nobody, so an outage elsewhere never gets it restarted."""
    return JsonResponse({"status": "alive"})


@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """503 without PostgreSQL or with migrations missing; else 200, or `degraded` when another server is away or workers take nothing.

    `seconds_ago`: when the oldest of what it tells was so. Servers are asked each time; one that takes too long is told as it last was.
    """
    checks = dependencies.check_all()
    status = dependencies.status_of(checks)
    shown = {
        check.name: {"state": check.state, "milliseconds": check.milliseconds}
        | ({"detail": check.fault} if check.fault else {})
        for check in checks
    }
    body = {"status": status, "checks": shown, "seconds_ago": max(check.seconds_ago for check in checks)}
    return JsonResponse(body, status=503 if status == "unavailable" else 200)
