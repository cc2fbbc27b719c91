"""A process closes its MongoDB client when it ends."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = "import django; django.setup(); from activities import outputs; outputs.collection()"


def test_a_process_closes_its_mongodb_client_when_it_ends(database: None) -> None:
    process = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", PROGRAM],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert "MongoClient" not in process.stderr
