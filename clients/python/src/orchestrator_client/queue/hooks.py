"""Who is told when items have ended. A hook that fails is logged and harms nobody: the item has ended already."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from orchestrator_client.queue.items import Batch, Item

Hook = Callable[[Item, Any], None]

logger = logging.getLogger(__name__)


class Hooks:
    """For queues to inherit. Both methods can be used as decorators."""

    def __init__(self) -> None:
        self._when_completed: list[Hook] = []
        self._when_failed: list[Hook] = []

    def on_task_completed(self, hook: Hook) -> Hook:
        """Call `hook(item, result)` for each item that is done."""
        self._when_completed.append(hook)
        return hook

    def on_task_failed(self, hook: Hook) -> Hook:
        """Call `hook(item, error)` for each item that has failed for good, be it with a lost lease: not for one that comes again."""
        self._when_failed.append(hook)
        return hook

    def _tell_completed(self, batch: Batch, result: Any) -> None:
        for item in batch.items:
            _tell(self._when_completed, item, result)

    def _tell_failed(self, batch: Batch, error: Any, *, retryable: bool) -> None:
        for item in batch.items:
            if not retryable or item.attempts >= item.max_attempts:
                _tell(self._when_failed, item, error)

    def _tell_one_failed(self, item: Item, error: Any) -> None:
        _tell(self._when_failed, item, error)


def _tell(hooks: list[Hook], item: Item, outcome: Any) -> None:
    for hook in hooks:
        try:
            hook(item, outcome)
        except Exception:
            logger.exception(
                "A hook of a queue failed", extra={"action": "queue_hook_failed", "item": item.id}
            )
