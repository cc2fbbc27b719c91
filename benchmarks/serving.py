"""The web processes of a benchmark: as the standard ones, on a port of their own."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import setting
from orchestrator.embedded import server


@contextmanager
def web(folder: Path) -> Iterator[int]:
    """Two web workers, as the standard processes start them; the port that they listen on."""
    port = server.keep_or_choose_port(None)
    command = [
        "gunicorn", "orchestrator.wsgi:application", "--worker-class=orchestrator.web_worker.StreamingWorker", "--workers=2", "--threads=8",
        f"--bind=127.0.0.1:{port}", "--no-control-socket",
    ]  # fmt: skip
    # How many there are tells a process what share of the machine's computing they have together.
    with setting.Workers(command, log=folder / "web.log", environment={**os.environ, "WEB_CONCURRENCY": "2"}):
        setting.wait(lambda: _answers(port), 60)
        yield port


def _answers(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
