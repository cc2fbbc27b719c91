"""An installation from outside: its API over HTTP, one agent, and work that is followed to its end."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.containers.engine import Trouble, wait

DONE = "done"
ENDED = {DONE, "needs_review", "reassigned", "cancelled"}
ROLE, AGENT_PORT = "blog-writer", 9000


def send(
    url: str, *, method: str = "GET", body: object = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Return status and body; the status is 0 without an answer. Uses no proxy."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data=data, method=method, headers={"Content-Type": "application/json", **(headers or {})}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()


class Installation:
    """`fronts` are the addresses of its web processes; a request goes to the first that accepts it."""

    def __init__(self, fronts: list[str], host: str, manage: Callable[..., str]) -> None:
        self.fronts, self.manage = fronts, manage
        # As the proxy that terminates TLS sends requests.
        self.headers = {"Host": host, "X-Forwarded-Proto": "https"}

    def sign_in(self, tenant: str) -> None:
        self.manage("create_tenant", tenant)
        token = self.manage("create_token", "--tenant", tenant, "--role", "admin").strip().splitlines()[-1]
        self.headers["Authorization"] = f"Bearer {token}"

    def api(self, method: str, path: str, body: object = None, *, key: str = "") -> Any:
        """Return the answer of the API. Raise `Trouble` if no front accepts the request."""
        error = ""
        for front in self.fronts:
            headers = {**self.headers, **({"Idempotency-Key": key} if key else {})}
            status, raw = send(f"{front}/api/v1{path}", method=method, body=body, headers=headers)
            if 200 <= status < 300:
                return json.loads(raw or b"null")
            error = f"{front}{path}: {status} {raw[:400].decode('utf-8', 'replace')}"
        raise Trouble(f"the API refused {method} {path}: {error}")

    def use_agent(self, endpoint: str) -> None:
        self.api(
            "PUT",
            f"/agent-configs/{ROLE}/",
            {"adapter": "http", "endpoint": endpoint, "timeout_seconds": 120},
        )

    def submit(self, mark: str, seconds: float = 0) -> str:
        params = {"mark": mark, "seconds": seconds}
        made = self.api(
            "POST",
            "/activities/",
            {"name": mark, "description": "A check.", "agent_role": ROLE, "params": params},
            key=mark,
        )
        return str(made["id"])

    def status(self, activity: str) -> str:
        try:
            return str(self.api("GET", f"/activities/{activity}/")["status"])
        except Trouble:
            return "unknown"

    def await_end(
        self, activities: list[str], seconds: float, progress: Callable[[str], None]
    ) -> dict[str, str]:
        """Wait until all have ended or the time is over, and return their statuses."""
        statuses: dict[str, str] = {}
        began = reported = time.monotonic()

        def all_ended() -> bool:
            nonlocal reported
            for activity in activities:
                if statuses.get(activity) not in ENDED:
                    statuses[activity] = self.status(activity)
            if time.monotonic() - reported > 15:
                reported = time.monotonic()
                ended = sum(status in ENDED for status in statuses.values())
                progress(f"     {ended} of {len(activities)} have ended after {reported - began:.0f} s")
            return all(status in ENDED for status in statuses.values())

        wait("activities", seconds, all_ended)
        return statuses
