"""The Celery application. `celery -A orchestrator worker -Q agent__seo` serves one role; without -Q, every role."""

from __future__ import annotations

import os
import threading
from typing import Any

from celery import Celery, signals

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.settings.local")

app = Celery("orchestrator")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

DEFAULT_CONCURRENCY = (
    16  # Threads that wait for agents. WORKER_CONCURRENCY_<ROLE> or --concurrency say otherwise.
)

# The roles that this worker consumes; forked children inherit it.
_roles: list[str] = []


@signals.celeryd_init.connect
def choose_concurrency(sender: str, instance: Any, conf: Any, options: dict[str, Any], **kwargs: Any) -> None:
    """The size of a worker for a single role comes from WORKER_CONCURRENCY_<ROLE>, unless the command line sets it."""
    from agents.routing import roles_of

    if options.get("concurrency"):
        return
    queues = options.get("queues") or []
    roles = roles_of(queues.split(",") if isinstance(queues, str) else queues)
    named = (
        os.environ.get(f"WORKER_CONCURRENCY_{roles[0].upper().replace('-', '_')}")
        if len(roles) == 1
        else None
    )
    conf.worker_concurrency = int(named or os.environ.get("WORKER_CONCURRENCY") or DEFAULT_CONCURRENCY)


@signals.celeryd_after_setup.connect
def choose_queues(sender: str, instance: Any, **kwargs: Any) -> None:
    """A worker started without -Q serves every role of the registry."""
    from agents import configuration
    from agents.routing import queue_of, roles_of

    queues = instance.app.amqp.queues
    if set(queues.consume_from) == {instance.app.conf.task_default_queue}:
        for role in sorted(configuration.known_roles()):
            queues.select_add(queue_of(role))
    _roles[:] = roles_of(queues.consume_from)


@signals.worker_ready.connect
def begin_worker(sender: Any, **kwargs: Any) -> None:
    """The main process keeps things going; with threads it also runs the agents."""
    from activities import keeper, workers

    if not _forks(sender.controller):
        workers.begin(roles=list(_roles), concurrency=sender.controller.concurrency)
    keeper.begin()


@signals.worker_process_init.connect
def begin_child(sender: Any = None, **kwargs: Any) -> None:
    """A forked child runs agents one at a time under a lease of its own."""
    from activities import workers

    workers.begin(roles=list(_roles), concurrency=1)


@signals.worker_shutting_down.connect
def drain_worker(sender: Any = None, **kwargs: Any) -> None:
    """Sent from within a signal handler, where a database connection must not be touched: a thread does it."""
    from activities import workers

    if _roles:
        threading.Thread(target=workers.drain, name="drain", daemon=True).start()


@signals.worker_process_shutdown.connect
@signals.worker_shutdown.connect
def end_worker(sender: Any = None, **kwargs: Any) -> None:
    from activities import keeper, workers

    keeper.end()
    workers.end()


@signals.beat_init.connect
def begin_beat(sender: Any = None, **kwargs: Any) -> None:
    from activities import keeper

    keeper.begin()


def _forks(worker: Any) -> bool:
    return "prefork" in getattr(worker.pool_cls, "__module__", "")
