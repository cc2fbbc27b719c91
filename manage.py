#!/usr/bin/env python
"""Command line of the project: `manage.py help` lists what there is."""

from orchestrator.command import main

if __name__ == "__main__":
    main()
