"""The Django project: settings, the Celery application, URLs and commands.

It imports nothing, because some of its modules (`orchestrator.mcp`, `orchestrator.embedded`) must run without Django and Celery.
"""
