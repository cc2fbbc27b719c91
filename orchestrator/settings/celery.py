"""Celery's settings; docs/operations.md explains them. The safety of work depends on PostgreSQL, not on these settings."""

import os

CELERY_TASK_SERIALIZER = "json"
CELERY_RESULT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_RESULT_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_BACKEND = "orchestrator.task_results:TaskResults"
CELERY_RESULT_EXTENDED = True  # with the task's name, its arguments and its worker
CELERY_RESULT_EXPIRES = 7 * 86_400  # seconds; beat deletes older results once a day
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# Workers mostly wait for agents; for computing agents run more processes.
CELERY_WORKER_POOL = "threads"
# Each costs a publish per message. If they are off, Flower switches them on some time after its start; with `make up` they are on.
CELERY_WORKER_SEND_TASK_EVENTS = os.environ.get("CELERY_WORKER_SEND_TASK_EVENTS") == "1"
CELERY_TASK_SEND_SENT_EVENT = False
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 20.0
CELERY_WORKER_ENABLE_SOFT_SHUTDOWN_ON_IDLE = True
# The run's lease decides, not the broker.
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, object] = {
    # Longer than the longest run in a worker (660 s). Recovery does not depend on it, and an early redelivery is refused.
    "visibility_timeout": 900,
    "unacked_restore_interval": 5,
    "unacked_restore_throttle": 1,
    "socket_timeout": 10,
    "socket_connect_timeout": 3,
    "socket_keepalive": True,
    "health_check_interval": 10,
}
if os.environ.get("ORCHESTRATOR_REDIS_USER") == "flower":
    # Flower receives events only, so it must not touch the unacknowledged messages of workers.
    CELERY_BROKER_TRANSPORT_OPTIONS |= {
        f"{name}_key": f"flower:{name}" for name in ("unacked", "unacked_index", "unacked_mutex")
    }
CELERY_TASK_DEFAULT_QUEUE = "system"
CELERY_TASK_CREATE_MISSING_QUEUES = True
CELERY_TASK_ROUTES = ("agents.routing.route",)
CELERY_BEAT_SCHEDULER = "orchestrator.beat:PatientScheduler"
CELERY_TIMEZONE = "UTC"
# Celery would close the database connection after each task, but a new one costs more than most tasks. activities.dispatch replaces broken
# ones.
CELERY_DB_REUSE_MAX = 2**62
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
