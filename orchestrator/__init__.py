"""The Django project: settings, the Celery application, URLs and the commands that run it all.

Nothing is imported here: some of its commands (`orchestrator.mcp`, `orchestrator.embedded`) need neither Django nor Celery.
"""
