"""The sample agents as processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
from standardwebhooks.webhooks import Webhook

ROOT = Path(__file__).resolve().parents[3]
ARTICLE = (ROOT / "examples/input/urban-beekeeping.md").read_text()
README = (ROOT / "examples/agents/README.md").read_text()
TEXT_AGENTS = (sys.executable, "-m", "examples.agents.text_agents")
ROLES = ("keyword-researcher", "content-brief-writer", "blog-writer", "site-auditor", "report-writer")
SMALL_TEXT = "# A heading does not count\n\nThe cat sat on the mat. It was happy."
MEASURES = ("sentences", "words", "syllables", "reading_ease", "grade_level")
Json = dict[str, Any]


class Agents:
    """A client of a running server of agents."""

    def __init__(self, client: httpx2.Client) -> None:
        self.client = client

    def post(self, role: str, **job: Any) -> httpx2.Response:
        return self.client.post(f"/{role}", json=job)

    def output(self, role: str, **job: Any) -> Json:
        """Return the output of a job that must succeed."""
        response = self.post(role, **job)
        assert response.status_code == 200, response.text
        output: Json = response.json()["output"]
        return output

    def record_of(self, role: str) -> Json:
        record: Json = self.client.get("/recorder").json()["roles"][role]
        return record

    def statuses(self, good: str, wrong: str) -> list[int]:
        """Return the statuses for a valid signature, a wrong secret, a changed body, an old, an unknown and a missing signature."""
        body, past = json.dumps({"params": {"text": SMALL_TEXT}}), datetime.now(UTC) - timedelta(minutes=6)
        requests = [(sign(good, body), body), (sign(wrong, body), body), (sign(good, body), body + " ")]
        future = {
            **sign(good, body),
            "webhook-signature": sign(good, body)["webhook-signature"].replace("v1", "v2"),
        }
        requests += [(sign(good, body, past), body), (future, body), ({}, body)]
        return [
            self.client.post("/site-auditor", headers=head, content=text).status_code
            for head, text in requests
        ]


def sign(secret: str, body: str, sent_at: datetime | None = None) -> dict[str, str]:
    at = sent_at or datetime.now(UTC)
    stamp = {"webhook-id": "msg_1", "webhook-timestamp": str(int(at.timestamp()))}
    return {**stamp, "webhook-signature": Webhook(secret).sign("msg_1", at, body)}


@contextmanager
def run_agents(command: Sequence[str], folder: Path, *options: str) -> Iterator[Agents]:
    ready_file = folder / "url"
    process = subprocess.Popen([*command, "--port", "0", "--ready-file", str(ready_file), *options], cwd=ROOT)
    try:
        deadline = time.monotonic() + 20
        while not ready_file.exists():
            assert process.poll() is None, "the server ended before it was ready"
            assert time.monotonic() < deadline, "the server was not ready in 20 seconds"
            time.sleep(0.02)
        with httpx2.Client(base_url=ready_file.read_text(), timeout=60) as client:
            yield Agents(client)
    finally:
        process.terminate()
        process.wait(10)
