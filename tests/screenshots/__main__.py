"""Command line: `python -m tests.screenshots [WORD ...]` takes pictures of the pages whose addresses contain one of the words, or of all.

The word `tutorial` takes those of the browser tutorial.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def main(words: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="screenshots-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another account when we are root
        os.environ.update(
            DJANGO_SETTINGS_MODULE="orchestrator.settings.local",
            ORCHESTRATOR_HOME=f"{folder}/home",
            ORCHESTRATOR_START_SERVICES="1",
            AGENT_EGRESS_ALLOW="hooks.example.com:443",
        )
        import django

        django.setup()
        from tests.screenshots import document, taking, world  # imported here because they need the settings

        with world.running(print) as scene:
            shots = taking.everything(scene, document.FOLDER, words, print)
            # Last, because the pages of the platform would also show the work of its tenant.
            if not words or "tutorial" in words:
                taking.tutorial(scene, document.OF_TUTORIAL, print)
        if not words:
            document.delete_others(shots)
        document.write()
        print(f"{sum(len(shot.files) for shot in shots)} pictures in {document.FOLDER}")


if __name__ == "__main__":
    main(sys.argv[1:])
