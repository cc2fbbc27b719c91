"""The Celery application.

`celery -A orchestrator worker -Q agent__seo` serves one role, `-Q 'agent__data-*'` all matching roles, `-Q system` the system's queues, and
without -Q everything. A worker also serves roles that are registered while it runs, unless its command line names its roles.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from logging.handlers import WatchedFileHandler
from typing import Any

from celery import Celery, signals
from celery.worker import state
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from orchestrator import broker, flower_auth
from tenants import tracing

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.settings.local")
# Django's system checks would load all views into each worker, which takes a second and 30 MiB. `manage.py check` runs them instead.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")


# Connected before Celery's own receivers, which load Django and all tasks: garbage collection would take a fifth of that time.
@signals.import_modules.connect
def pause_garbage_collection(**kwargs: Any) -> None:
    gc.disable()


broker.install()
broker.hide_settings()
app = Celery("orchestrator")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


# Connected after them. Loaded modules are never collected, so they are excluded from later scans.
@signals.import_modules.connect
def resume_garbage_collection(**kwargs: Any) -> None:
    gc.freeze()
    gc.enable()


@signals.after_setup_logger.connect
def log_to_file(logger: logging.Logger, logfile: str | None, **kwargs: Any) -> None:
    """Write the lines to the file of `--logfile` instead of stderr, which `--detach` and `celery multi` close.

    Celery itself only adds a handler if there is none, and Django's settings have configured one.
    """
    if logfile:
        handler = WatchedFileHandler(logfile, encoding="utf-8")
        handler.setFormatter(logger.handlers[0].formatter)
        logger.handlers[:] = [handler]


if os.path.basename(sys.argv[0]) == "celery" or sys.argv[0].endswith(os.path.join("celery", "__main__.py")):
    try:
        settings.DEBUG  # noqa: B018  # reads all settings
    except ImproperlyConfigured as error:
        # Celery would print this after a page of its own calls.
        sys.exit(str(error))
    if re.search(r"\0(--pool[=\0]|-P\0?)prefork(\0|$)", "\0".join(sys.argv)):
        # It is Celery's own default. So Celery takes the option for omitted, and would use the pool of the settings.
        app.conf.worker_pool = "prefork"

if flower_auth.is_starting(sys.argv):
    flower_auth.stay_on_loopback(sys.argv, os.environ)
    flower_auth.protect_metrics()

logger = logging.getLogger(__name__)

START_PATIENCE_SECONDS = 60.0  # to wait for PostgreSQL, whose restart takes some seconds
START_PAUSE_SECONDS = 1.0
NOT_STARTED = 71  # "system error" of sysexits.h
NOT_ENDED = 70  # exit status after SIGQUIT with unfinished runs, which other workers take over
LEAVE_SECONDS = 3.0  # for the rest of a cold shutdown: returning messages and ending the lease

# Default concurrency without WORKER_CONCURRENCY and --concurrency: threads that wait for remote agents cost little, but local programs need
# a core each.
THREADS_PER_CORE = 8
FEWEST_THREADS, MOST_THREADS = 16, 64  # by default
MOST_THREADS_BY_HAND = 1_000
# Of a worker without roles, because background tasks are short; see also WORKER_CONCURRENCY_SYSTEM.
SYSTEM_CONCURRENCY = 4

ROLES_SECONDS = 0.75  # between two checks of the registry, so that new roles are served within 2 s

# The queues named on the command line, and the roles that are served. Forked children inherit both.
_named_queues: list[str] = []
_roles: list[str] = []
_ending = threading.Event()


def ensure(step: Callable[[], None], *, vital: bool = True) -> None:
    """Run a step of the start, and repeat it while PostgreSQL does not answer. If a `vital` step fails, the process ends.

    Celery continues after a failed handler. Such a worker could take messages without a lease, so that its runs would be reclaimed one
    after the other, or it could listen to the wrong queues.
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
                    logger.exception("Start step failed", extra={"action": "start_step_failed"})
                    return
                logger.critical("Process not started", exc_info=True, extra={"action": "start_failed"})
                raise SystemExit(NOT_STARTED) from error
            reason = outages.reason_of(error) or str(error).strip()
            if time.monotonic() > deadline:
                logger.critical("Process not started", extra={"action": "start_failed", "reason": reason})
                raise SystemExit(NOT_STARTED) from error
            logger.warning("Start waits for PostgreSQL", extra={"action": "start_waits", "reason": reason})
            time.sleep(START_PAUSE_SECONDS)
            close_old_connections()


@signals.celeryd_init.connect
def make_restartable(**kwargs: Any) -> None:
    """Let SIGHUP restart a worker of `python -m celery`. Celery would run the file of that module, which cannot run on its own."""
    if sys.argv[0].endswith(os.path.join("celery", "__main__.py")):
        sys.argv[:1] = ["-m", "celery"]


@signals.celeryd_init.connect
def disable_remote_commands(**kwargs: Any) -> None:
    """Answer only queries of Celery's remote control."""
    broker.disable_commands()


@signals.celeryd_init.connect
def choose_concurrency(sender: str, instance: Any, conf: Any, options: dict[str, Any], **kwargs: Any) -> None:
    """Set the concurrency: from the command line, WORKER_CONCURRENCY_<ROLE> (for a single role), WORKER_CONCURRENCY, or the default."""
    from agents.routing import SYSTEM_QUEUE, canonical, roles_of

    queues = options.get("queues") or []
    _named_queues[:] = map(canonical, queues.split(",") if isinstance(queues, str) else queues)
    forks = _is_prefork(options.get("pool"))
    if options.get("autoscale") and not forks:
        raise SystemExit("--autoscale needs --pool=prefork: Celery cannot change the number of threads.")
    if options.get("max_tasks_per_child") == 1:
        # With the child its seat ends, so grants are withdrawn whose messages would then be the only task of the next child.
        raise SystemExit("--max-tasks-per-child must be at least 2, because a message may have become stale.")
    if options.get("concurrency"):
        return
    roles = roles_of(_named_queues)
    if _named_queues and not roles:
        conf.worker_concurrency = _concurrency_of(SYSTEM_QUEUE) or SYSTEM_CONCURRENCY
        return
    of_role = _concurrency_of(roles[0]) if len(roles) == 1 else 0
    conf.worker_concurrency = (
        of_role
        or _number_of_threads("WORKER_CONCURRENCY")
        or (cores() if forks else _default_concurrency(roles))
    )


def _is_prefork(pool: Any) -> bool:
    return "prefork" in getattr(pool, "__module__", "")


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _default_concurrency(roles: Sequence[str]) -> int:
    """Return the number of cores if all roles are local programs, or else a number of waiting threads."""
    if roles and _are_local_programs(roles):
        return cores()
    return min(max(FEWEST_THREADS, THREADS_PER_CORE * cores()), MOST_THREADS)


def _are_local_programs(roles: Sequence[str]) -> bool:
    """Return whether all roles are command-line agents in the registry. False while PostgreSQL does not answer."""
    from django.db import DatabaseError

    from agents.models import Adapter, Agent

    try:
        adapters = dict(Agent.objects.filter(role__in=roles).values_list("role", "adapter"))
    except DatabaseError:
        return False
    return all(adapters.get(role) == Adapter.CLI for role in roles)


def _concurrency_of(name: str) -> int:
    """Return the value of WORKER_CONCURRENCY_<NAME>, or 0."""
    return _number_of_threads(f"WORKER_CONCURRENCY_{name.upper().replace('-', '_')}")


def _number_of_threads(variable: str) -> int:
    """Return the number in the variable, or 0. Ends the process if the value is invalid, because Celery ignores errors of receivers."""
    from orchestrator.settings.services import whole_number

    try:
        return whole_number(variable, 0, most=MOST_THREADS_BY_HAND)
    except ImproperlyConfigured as error:
        raise SystemExit(str(error)) from error


@signals.celeryd_after_setup.connect
def choose_queues(sender: str, instance: Any, **kwargs: Any) -> None:
    """Select the worker's queues. Without -Q they are those of all roles of the registry, and the system's."""
    from agents import configuration
    from agents.command_line import users
    from agents.routing import canonical, is_pattern, roles_of, select_queues, unknown_queues
    from pipelines import conditions

    users.begin_worker()
    conditions.warm_up()

    def choose() -> None:
        queues = instance.app.amqp.queues
        # Remove the patterns and aliases that Celery took from the command line as queue names.
        queues.deselect([name for name in queues.consume_from if is_pattern(name) or canonical(name) != name])
        roles = configuration.list_roles()
        for name in select_queues(_named_queues, roles):
            if name not in queues.consume_from:
                queues.select_add(name)
        _roles[:] = roles_of(queues.consume_from)
        unmatched = [name for name in _named_queues if is_pattern(name) and not select_queues([name], roles)]
        if unknown := [*sorted(set(_roles) - set(roles)), *roles_of(unmatched)]:
            # They may be registered later. Until then their queues stay empty, also because of a misspelt name.
            logger.warning("Unknown roles in -Q", extra={"action": "role_unknown", "roles": unknown})
        if unknown := unknown_queues(queues.consume_from):
            logger.warning(
                "Unknown queues in -Q: a role's queue is agent__<role>",
                extra={"action": "queue_unknown", "queues": unknown},
            )

    ensure(choose)


@signals.worker_ready.connect
def begin_worker(sender: Any, **kwargs: Any) -> None:
    """Start upkeep in the worker's main process; with a thread pool also the execution of agents."""
    from activities import intake, maintenance, worker
    from tenants.context import POOL

    source = _Intake(sender)
    if _is_prefork(sender.controller.pool_cls):
        _follow_registry(source.take_only)
    else:
        POOL.begin()
        ensure(
            # The limit of the pool, because the pool `solo` ignores the configured concurrency.
            lambda: worker.begin(
                roles=list(_roles), concurrency=sender.pool.limit, take_only=source.take_only
            )
        )
        _follow_registry(intake.serve)
        threading.Thread(target=_end_after_cold_shutdown, name="cold shutdown", daemon=True).start()
    maintenance.begin()


def _follow_registry(serve: Callable[[Sequence[str]], None]) -> None:
    """Serve roles that are registered later, unless the command line names the roles. Removed roles are kept, because they have no work."""
    from agents.routing import serves_new_roles

    if serves_new_roles(_named_queues):
        threading.Thread(target=_serve_new_roles, args=(serve,), name="roles", daemon=True).start()


def _serve_new_roles(serve: Callable[[Sequence[str]], None]) -> None:
    from django.db import close_old_connections, connections

    from agents import configuration
    from agents.routing import roles_of, select_queues
    from tenants import outages

    while not _ending.wait(ROLES_SECONDS):
        try:
            close_old_connections()
            roles = {*_roles, *roles_of(select_queues(_named_queues, configuration.present_roles()))}
            if roles - set(_roles):
                serve(sorted(roles))
                _roles[:] = sorted(roles)
        except Exception as error:
            # Log and retry, because without this thread a new role would wait for a restart.
            level = logging.WARNING if outages.may_pass(error) else logging.ERROR
            logger.log(level, "Registry not read", exc_info=True, extra={"action": "registry_not_read"})
    connections.close_all()


def _ends_cold() -> bool:
    """Return whether the grace period of SIGQUIT is over."""
    return vars(state)["should_terminate"] not in (None, False)


def _end_after_cold_shutdown() -> None:
    """End the process after the grace period of SIGQUIT. Celery would wait for the threads of its pool, which cannot be ended."""
    while not _ends_cold():
        time.sleep(0.2)
    time.sleep(LEAVE_SECONDS)
    logger.warning("Worker ends with unfinished runs", extra={"action": "cold_shutdown"})
    logging.shutdown()
    os._exit(NOT_ENDED)


@signals.worker_process_init.connect
def begin_child(sender: Any = None, **kwargs: Any) -> None:
    """Start a forked child, which runs agents one at a time under its own lease."""
    from django.db import connections

    from activities import intake, worker

    # Children that used the connections of their parent would read the answers to each other's statements. Closing them here would end
    # the parent's sessions. Celery handles them only after this receiver.
    for connection in connections.all(initialized_only=True):
        connection.connection = None
    ensure(lambda: worker.begin(roles=list(_roles), concurrency=1))
    _follow_registry(intake.serve)
    connections.close_all()  # Celery closes those that it finds with os.close(), which another thread's socket may suffer from


# Not written out in the decorators: tests/architecture takes a function with `.task` in a decorator for a task.
_before, _after = signals.task_prerun, signals.task_postrun


@_before.connect
def bind_task(task_id: str, task: Any, **kwargs: Any) -> None:
    """Add the task to the log lines that are written while it runs."""
    import structlog  # after the settings, which import it without libraries that it does not need

    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(task=task.name, task_id=task_id)
    tracing.note_arrival(task.request.get("traceparent"))


@_after.connect
def unbind_task(**kwargs: Any) -> None:
    import structlog

    structlog.contextvars.clear_contextvars()


@signals.worker_shutting_down.connect
def drain_worker(sender: Any = None, **kwargs: Any) -> None:
    """Drain in a thread, because this runs in a signal handler, where database connections must not be used."""
    from activities import worker as activity_worker

    if _roles:
        threading.Thread(target=activity_worker.drain, name="drain", daemon=True).start()


@signals.worker_shutdown.connect
def finish_runs(sender: Any = None, **kwargs: Any) -> None:
    from activities import worker as activity_worker

    activity_worker.finish_runs(is_cut_short=_ends_cold)


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

    def repair() -> None:
        monthly_job.repair()
        beat.repair()
        registry.warn_of_broken_references()

    maintenance.begin()
    ensure(repair, vital=False)


class _Intake:
    """The queues that this worker consumes. Changes are made in the consumer's thread, between two messages."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._wanted: list[str] = list(_roles)
        self._known: set[str] = set(_roles)  # all roles that were ever consumed

    def take_only(self, roles: Sequence[str]) -> None:
        self._wanted = list(roles)
        self._consumer.call_soon(self._apply)

    def _apply(self) -> None:
        """Apply the latest wish, because the calls may run in any order."""
        from agents.routing import queue_of

        self._known.update(self._wanted)
        for role in sorted(self._known):
            if role in self._wanted:
                self._consumer.add_task_queue(queue_of(role))
            else:
                self._consumer.cancel_task_queue(queue_of(role))
