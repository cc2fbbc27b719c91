"""The settings of the product for a worker whose death must be noticed within seconds."""

from __future__ import annotations

from orchestrator.settings.test import *  # noqa: F403
from orchestrator.settings.test import CELERY_BROKER_TRANSPORT_OPTIONS as _OPTIONS

CELERY_BROKER_TRANSPORT_OPTIONS = {**_OPTIONS, "visibility_timeout": 2, "unacked_restore_interval": 1}
