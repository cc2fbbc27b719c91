"""The client of MongoDB does not outlive its process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = "import django; django.setup(); from activities import outputs; outputs.collection()"


def test_a_process_closes_its_client_of_mongodb_when_it_ends(database: None) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", PROGRAM],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert "MongoClient" not in ended.stderr
