"""Command line: `python -m tests.screenshots [WORD ...]` takes pictures of the pages whose addresses hold one of the words, else of all.
The word tutorial takes those of the tutorial in the browser."""

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
        from tests.screenshots import document, taking, world  # these need the settings

        with world.running(print) as scene:
            taken = taking.everything(scene, document.FOLDER, words, print)
            # Last, since the platform's pages would show its tenant's work too.
            if not words or "tutorial" in words:
                taking.tutorial(scene, document.OF_TUTORIAL, print)
        if not words:
            document.clear_out(taken)
        document.write()
        print(f"{sum(len(shot.files) for shot in taken)} pictures in {document.FOLDER}")


if __name__ == "__main__":
    main(sys.argv[1:])
