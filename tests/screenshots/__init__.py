"""Pictures of every page of the console and of the admin, for docs/screens.md: `python -m tests.screenshots`, or `make screenshots`.

The pages are read from their navigation, so a new page is in the next pictures. Needs a Chromium on this machine and Python's
playwright, which the project does not require.
"""
