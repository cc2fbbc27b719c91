"""The logger of the web's processes: what gunicorn says goes the way of all other lines, instead of having a format of its own."""

from __future__ import annotations

import logging.config
from typing import Any

from gunicorn.glogging import Logger

from orchestrator.settings.logging import LOGGING


class OneFormat(Logger):
    """`--logger-class=orchestrator.web_logging.OneFormat`."""

    def setup(self, cfg: Any) -> None:
        """Before any worker is there, and without Django: the parent process has lines to write as well."""
        super().setup(cfg)
        for logger in (self.error_log, self.access_log):
            logger.handlers.clear()
            logger.propagate = True
        self.access_log.disabled = not cfg.accesslog
        logging.config.dictConfig(LOGGING)
