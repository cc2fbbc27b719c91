"""The Django project: settings, the Celery application, URLs and the commands that run it all."""

from orchestrator.celery import app as celery_app

__all__ = ("celery_app",)
