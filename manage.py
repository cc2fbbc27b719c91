#!/usr/bin/env python
"""Command line of the project: `manage.py help` lists what there is."""

import gc

# What Django loads is never garbage, and searching it for some took a tenth of the time of a command.
gc.set_threshold(100_000, 20, 50)

from orchestrator.command import main  # noqa: E402

if __name__ == "__main__":
    main()
