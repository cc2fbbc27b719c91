"""The Celery application.

`celery -A orchestrator worker -Q agent__seo` serves one role, `-Q 'agent__data-*'` all roles that match, `-Q system` all queues of the
system; without -Q, everything. Roles that are added to the registry while a worker runs are served as well, unless it names its roles.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from celery import Celery, signals
from celery.worker import state

from orchestrator import broker, flower_auth
from tenants import tracing

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.settings.local")
# Django's checks of the system look at every page, and would load all of them into each worker: a second of work, 30 MiB of memory.
# `manage.py check` is the place for them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")


# Before Celery's own receivers of this signal, which load Django and all tasks. Without garbage, to look for it is a fifth of the work.
@signals.import_modules.connect
def rest_from_collecting(**kwargs: Any) -> None:
    gc.disable()


broker.install()
app = Celery("orchestrator")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


# After them. What was loaded stays for good, so it is never looked at again.
@signals.import_modules.connect
def collect_again(**kwargs: Any) -> None:
    gc.freeze()
    gc.enable()


if flower_auth.is_starting(sys.argv):
    flower_auth.close()

logger = logging.getLogger(__name__)

START_PATIENCE_SECONDS = (
    60.0  # for PostgreSQL: a restart takes some seconds, and the supervisor of processes starts the next one
)
START_PAUSE_SECONDS = 1.0
NOT_STARTED = 71  # "system error" of sysexits.h
NOT_ENDED = 70  # the exit status after SIGQUIT when runs were still under way; they are taken over
LEAVE_SECONDS = 3.0  # for what a cold shutdown does besides: messages go back, the lease is ended

# How many agents a worker runs at once when neither WORKER_CONCURRENCY nor --concurrency says so: threads that wait for agents elsewhere
# cost little; programs on this machine want a core each.
THREADS_PER_CORE = 8
FEWEST_THREADS, MOST_THREADS = 16, 64
SYSTEM_CONCURRENCY = 4  # Threads of a worker without roles: background tasks are short, and WORKER_CONCURRENCY_SYSTEM says otherwise.

ROLES_SECONDS = 0.75  # between two looks at the registry: what is added there is served within 2 s

# The queues that the command line names, and the roles among them or among all; forked children inherit both.
_asked: list[str] = []
_roles: list[str] = []
_ending = threading.Event()


def _surely(step: Callable[[], None], *, vital: bool = True) -> None:
    """Do a step of the start; while PostgreSQL is away, again. If it cannot be done and is `vital`, the process ends.

    Celery goes on after a handler that failed. That would leave a worker that takes messages while nobody knows of it, so that its runs
    are taken away from it one after the other, or one that listens to the wrong queues.
    """
    from django.db import close_old_connections

    from tenants import outages

    deadline = time.monotonic() + START_PATIENCE_SECONDS
    while True:
        try:
            step()
            return
        except Exception as error:
            if not outages.may_pass(error):
                if not vital:
                    logger.exception("A step of the start failed", extra={"action": "start_step_failed"})
                    return
                logger.critical("Process not started", exc_info=True, extra={"action": "start_failed"})
                raise SystemExit(NOT_STARTED) from error
            if time.monotonic() > deadline:
                logger.critical(
                    "Process not started", extra={"action": "start_failed", "reason": str(error).strip()}
                )
                raise SystemExit(NOT_STARTED) from error
            logger.warning(
                "PostgreSQL is away", extra={"action": "start_waits", "reason": str(error).strip()}
            )
            time.sleep(START_PAUSE_SECONDS)
            close_old_connections()


@signals.celeryd_init.connect
def take_no_orders(**kwargs: Any) -> None:
    """Remote control may ask, and not command."""
    from orchestrator import broker

    broker.answer_only()


@signals.celeryd_init.connect
def choose_concurrency(sender: str, instance: Any, conf: Any, options: dict[str, Any], **kwargs: Any) -> None:
    """The size of a worker for a single role comes from WORKER_CONCURRENCY_<ROLE>, unless the command line sets it."""
    from agents.routing import SYSTEM_QUEUE, canonical, roles_of

    queues = options.get("queues") or []
    _asked[:] = map(canonical, queues.split(",") if isinstance(queues, str) else queues)
    if options.get("concurrency"):
        return
    roles = roles_of(_asked)
    if _asked and not roles:
        conf.worker_concurrency = _concurrency_of(SYSTEM_QUEUE) or SYSTEM_CONCURRENCY
        return
    named = _concurrency_of(roles[0]) if len(roles) == 1 else 0
    conf.worker_concurrency = named or int(os.environ.get("WORKER_CONCURRENCY") or 0) or _usual_size(roles)


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _usual_size(roles: Sequence[str]) -> int:
    """As many programs as there are cores where all of the worker's roles run on this machine, else threads that wait."""
    if roles and _run_here(roles):
        return cores()
    return min(max(FEWEST_THREADS, THREADS_PER_CORE * cores()), MOST_THREADS)


def _run_here(roles: Sequence[str]) -> bool:
    """Whether the registry has a program of this machine for each of them. While PostgreSQL is away nobody knows, and none has."""
    from django.db import DatabaseError

    from agents.models import Adapter, Agent

    try:
        found = dict(Agent.objects.filter(role__in=roles).values_list("role", "adapter"))
    except DatabaseError:
        return False
    return all(found.get(role) == Adapter.CLI for role in roles)


def _concurrency_of(name: str) -> int:
    """What WORKER_CONCURRENCY_<NAME> says, or 0."""
    return int(os.environ.get(f"WORKER_CONCURRENCY_{name.upper().replace('-', '_')}") or 0)


@signals.celeryd_after_setup.connect
def choose_queues(sender: str, instance: Any, **kwargs: Any) -> None:
    """A worker started without -Q serves every role of the registry, and the system's own queues."""
    from agents import configuration
    from agents.command_line import users
    from agents.routing import canonical, is_pattern, roles_of, select_queues
    from pipelines import conditions

    users.begin_worker()
    conditions.warm_up()

    def choose() -> None:
        queues = instance.app.amqp.queues
        # What Celery has taken from the command line as it stands there is no queue.
        queues.deselect([name for name in queues.consume_from if is_pattern(name) or canonical(name) != name])
        for name in select_queues(_asked, configuration.list_roles()):
            if name not in queues.consume_from:
                queues.select_add(name)
        _roles[:] = roles_of(queues.consume_from)
        if unknown := sorted(set(_roles) - set(configuration.list_roles())):
            # They may be added later. Until then nothing comes to their queues, as with a name that was misspelt.
            logger.warning(
                "The registry has no such role", extra={"action": "role_unknown", "roles": unknown}
            )

    _surely(choose)


@signals.worker_ready.connect
def begin_worker(sender: Any, **kwargs: Any) -> None:
    """The main process keeps things going; with threads it also runs the agents."""
    from activities import intake as activity_intake
    from activities import maintenance
    from activities import worker as activity_worker
    from tenants.context import POOL

    intake = _Intake(sender)
    if "prefork" in getattr(sender.controller.pool_cls, "__module__", ""):
        _follow(intake.take_only)
    else:
        POOL.begin()
        _surely(
            lambda: activity_worker.begin(
                roles=list(_roles), concurrency=sender.controller.concurrency, intake=intake
            )
        )
        _follow(activity_intake.serve)
        threading.Thread(target=_end_after_cold_shutdown, name="cold shutdown", daemon=True).start()
    maintenance.begin()


def _follow(serve: Callable[[Sequence[str]], None]) -> None:
    """Serve the roles that are added from now on, if this worker does not name its roles. A role that goes is kept: it has no work."""
    from agents.routing import serves_new_roles

    if serves_new_roles(_asked):
        threading.Thread(target=_serve_added, args=(serve,), name="roles", daemon=True).start()


def _serve_added(serve: Callable[[Sequence[str]], None]) -> None:
    from django.db import close_old_connections, connections

    from agents import configuration
    from agents.routing import roles_of, select_queues
    from tenants import outages

    while not _ending.wait(ROLES_SECONDS):
        try:
            close_old_connections()
            roles = {*_roles, *roles_of(select_queues(_asked, configuration.present_roles()))}
            if roles - set(_roles):
                serve(sorted(roles))
                _roles[:] = sorted(roles)
        except Exception as error:
            # Told and tried again: without this thread a new role would wait for a restart.
            level = logging.WARNING if outages.may_pass(error) else logging.ERROR
            logger.log(level, "Registry not read", exc_info=True, extra={"action": "registry_not_read"})
    connections.close_all()


def _end_after_cold_shutdown() -> None:
    """End the process once SIGQUIT has given runs their time. Celery would wait for the threads of its pool, which nobody can end."""
    while vars(state)["should_terminate"] in (None, False):  # set when that time is over
        time.sleep(0.2)
    time.sleep(LEAVE_SECONDS)
    logger.warning("Worker ends with runs under way", extra={"action": "cold_shutdown"})
    logging.shutdown()
    os._exit(NOT_ENDED)


@signals.worker_process_init.connect
def begin_child(sender: Any = None, **kwargs: Any) -> None:
    """A forked child runs agents one at a time under a lease of its own."""
    from activities import intake as activity_intake
    from activities import worker as activity_worker

    _surely(lambda: activity_worker.begin(roles=list(_roles), concurrency=1))
    _follow(activity_intake.serve)


_before, _after = signals.task_prerun, signals.task_postrun


@_before.connect
def name_task(task_id: str, task: Any, **kwargs: Any) -> None:
    """Lines that are written while a message is worked on name its task."""
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(task=task.name, task_id=task_id)
    tracing.note_arrival(task.request.get("traceparent"))


@_after.connect
def forget_task(**kwargs: Any) -> None:
    structlog.contextvars.clear_contextvars()


@signals.worker_shutting_down.connect
def drain_worker(sender: Any = None, **kwargs: Any) -> None:
    """Sent from within a signal handler, where a database connection must not be touched: a thread does it."""
    from activities import worker as activity_worker

    if _roles:
        threading.Thread(target=activity_worker.drain, name="drain", daemon=True).start()


@signals.worker_process_shutdown.connect
@signals.worker_shutdown.connect
def end_worker(sender: Any = None, **kwargs: Any) -> None:
    from activities import maintenance
    from activities import worker as activity_worker
    from tenants.context import POOL

    _ending.set()
    maintenance.end()
    activity_worker.end()
    POOL.end()


@signals.beat_init.connect
def begin_beat(sender: Any = None, **kwargs: Any) -> None:
    from activities import maintenance
    from agents import registry
    from pipelines.deliverables import monthly_job
    from pipelines.schedules import beat

    def mend() -> None:
        monthly_job.repair()
        beat.repair()
        registry.warn_of_broken_references()

    maintenance.begin()
    _surely(mend, vital=False)


class _Intake:
    """The queues that this worker takes from. Its consumer is told in its own thread, between two messages."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._wanted: list[str] = list(_roles)
        self._known: set[str] = set(_roles)  # what was ever taken

    def take_only(self, roles: Sequence[str]) -> None:
        self._wanted = list(roles)
        self._consumer.call_soon(self._follow)

    def _follow(self) -> None:
        """Do what was said last: the order of what is to be done soon is not promised."""
        from agents.routing import queue_of

        self._known.update(self._wanted)
        for role in sorted(self._known):
            if role in self._wanted:
                self._consumer.add_task_queue(queue_of(role))
            else:
                self._consumer.cancel_task_queue(queue_of(role))
