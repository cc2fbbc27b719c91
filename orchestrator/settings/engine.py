"""Settings of the engine. Each has a unit in its name and says what happens when it is too small or too large."""

from __future__ import annotations

import environ

from orchestrator.settings.services import HOME

_env = environ.Env()

# Liveness. Too small: a busy machine loses live work. Too large: work of a dead process waits.
ORCHESTRATOR_HEARTBEAT_SECONDS = _env.float("ORCHESTRATOR_HEARTBEAT_SECONDS", default=5.0)
ORCHESTRATOR_LOST_AFTER_SECONDS = _env.float("ORCHESTRATOR_LOST_AFTER_SECONDS", default=30.0)
# A process that could not beat for this long ends itself. Must stay below LOST_AFTER, or two may work on the same run.
ORCHESTRATOR_WATCHDOG_SECONDS = _env.float("ORCHESTRATOR_WATCHDOG_SECONDS", default=25.0)

# An accepted run whose agent has sent heartbeats and then none for this long is lost. Too small: a slow agent runs twice.
ORCHESTRATOR_AGENT_SILENT_SECONDS = _env.float("ORCHESTRATOR_AGENT_SILENT_SECONDS", default=60.0)

# How often the keeper promotes what is due and offers what was forgotten. Smaller costs idle processor time.
ORCHESTRATOR_TICK_SECONDS = _env.float("ORCHESTRATOR_TICK_SECONDS", default=1.0)
ORCHESTRATOR_PROMOTE_PER_TICK = 100  # bounds the work of one pass
# A grant that no worker has taken up is published again after this long; duplicates are refused at the claim.
ORCHESTRATOR_REPUBLISH_SECONDS = _env.float("ORCHESTRATOR_REPUBLISH_SECONDS", default=10.0)

ORCHESTRATOR_MAX_STALLS = 2  # a third stall is final
ORCHESTRATOR_DEFAULT_TIMEOUT_SECONDS = 660
ORCHESTRATOR_MAX_ROUNDS = 5  # revisions of one step before people must intervene

# Fairness. Waiting longer than the ageing bound lifts work of a lower band into a guaranteed share of the grants.
ORCHESTRATOR_AGEING_SECONDS = _env.float("ORCHESTRATOR_AGEING_SECONDS", default=30.0)
ORCHESTRATOR_AGED_SHARE = 5  # one grant of this many goes to aged work while there is some

# Redis. Too large: a frozen Redis holds the relay longer (nobody else waits for it).
ORCHESTRATOR_REDIS_TIMEOUT_SECONDS = 2.0
ORCHESTRATOR_REDIS_PREFIX = _env("ORCHESTRATOR_REDIS_PREFIX", default="orchestrator:")

# A worker goes on with the next granted activity itself, without a message, until its message is this old.
ORCHESTRATOR_CONTINUE_SECONDS = _env.float("ORCHESTRATOR_CONTINUE_SECONDS", default=1.0)

# Agents' work that may be under way at the same time, over all roles, tenants and workers. 0: as much as there are seats.
ORCHESTRATOR_MAX_CONCURRENCY = _env.int("ORCHESTRATOR_MAX_CONCURRENCY", default=0)

# A tenant's backlog per role: submissions beyond it are answered 429.
ORCHESTRATOR_MAX_BACKLOG = _env.int("ORCHESTRATOR_MAX_BACKLOG", default=200_000)

# Outbound calls to agents. Entries are "host:port"; they are the only way around the address rules.
ORCHESTRATOR_EGRESS_ALLOW = tuple(_env.list("AGENT_EGRESS_ALLOW", default=[]))
ORCHESTRATOR_EGRESS_DENY: tuple[str, ...] = ()
ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES = 1_000_000
# Python callables that the inline adapter may run, by dotted prefix.
ORCHESTRATOR_INLINE_CALLABLES = tuple(_env.list("ORCHESTRATOR_INLINE_CALLABLES", default=["agents.samples"]))

# How often the endpoints of HTTP agents are looked at, and how soon again after a first failure. Too small: agents get calls that are
# no work. Too large: people hear late of one that is away.
ORCHESTRATOR_HEALTH_INTERVAL_SECONDS = _env.float("ORCHESTRATOR_HEALTH_INTERVAL_SECONDS", default=300.0)
ORCHESTRATOR_HEALTH_RETRY_SECONDS = _env.float("ORCHESTRATOR_HEALTH_RETRY_SECONDS", default=30.0)
# How long one look may take. Too small: a slow agent counts as away. Too large: one that hangs holds up the others of its turn.
ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS = _env.float("ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS", default=5.0)

# Where agents reach us. Empty: http://127.0.0.1:$PORT
ORCHESTRATOR_PUBLIC_URL = _env("ORCHESTRATOR_PUBLIC_URL", default="")

# Requests per second and tenant that the API accepts, and the burst above it.
ORCHESTRATOR_API_RATE = _env.float("ORCHESTRATOR_API_RATE", default=500.0)
ORCHESTRATOR_API_BURST = _env.float("ORCHESTRATOR_API_BURST", default=2000.0)
# Bodies larger than this are answered 413.
ORCHESTRATOR_MAX_BODY_BYTES = 256 * 1024
ORCHESTRATOR_MAX_OUTPUT_BYTES = 1024 * 1024

# Wakes without progress within the window, then people are asked. Too small: a lively discussion is cut off. Too large: a loop costs more.
ORCHESTRATOR_WAKE_BUDGET = _env.int("ORCHESTRATOR_WAKE_BUDGET", default=10)
ORCHESTRATOR_WAKE_BUDGET_SECONDS = 600.0

# What one run, one activity and one tree of subtasks may ask for with tools. Too small: honest agents are refused.
ORCHESTRATOR_TOOL_CALLS_PER_RUN = 50
ORCHESTRATOR_SUBTASKS_PER_ACTIVITY = 5
ORCHESTRATOR_OPEN_REVIEWS_PER_ACTIVITY = 3
ORCHESTRATOR_SUBTASK_DEPTH = 3
ORCHESTRATOR_ACTIVITIES_PER_TREE = 100
ORCHESTRATOR_REASSIGNMENTS = 3
ORCHESTRATOR_LINKS_PER_APPROVAL = 500

# Data sources. Where operators put files for tenants, in a folder per tenant id.
ORCHESTRATOR_DATA_FOLDER = _env("ORCHESTRATOR_DATA_FOLDER", default=str(HOME / "data"))
# What a source outside the database may answer or hold, and for how long it is waited for. Too large: memory of a worker.
ORCHESTRATOR_DATA_SOURCE_BYTES = _env.int("ORCHESTRATOR_DATA_SOURCE_BYTES", default=16 * 1024 * 1024)
ORCHESTRATOR_DATA_SOURCE_SECONDS = _env.float("ORCHESTRATOR_DATA_SOURCE_SECONDS", default=30.0)
# What a tenant may keep. Too small: honest uploads are refused. Too large: one call holds a transaction for long.
ORCHESTRATOR_DATASETS_PER_TENANT = _env.int("ORCHESTRATOR_DATASETS_PER_TENANT", default=200)
ORCHESTRATOR_DATASET_ROWS = _env.int("ORCHESTRATOR_DATASET_ROWS", default=100_000)
ORCHESTRATOR_DATASET_ROWS_PER_CALL = _env.int("ORCHESTRATOR_DATASET_ROWS_PER_CALL", default=20_000)
ORCHESTRATOR_DATASET_BODY_BYTES = _env.int("ORCHESTRATOR_DATASET_BODY_BYTES", default=8 * 1024 * 1024)
# Rows of source `cache` are gone after this long.
ORCHESTRATOR_DATASET_CACHE_SECONDS = _env.int("ORCHESTRATOR_DATASET_CACHE_SECONDS", default=3600)
# Items of a step with a for_each; a longer list fails the step. Too large: one step holds up a run's row, a join's input grows.
ORCHESTRATOR_FAN_OUT_ITEMS = _env.int("ORCHESTRATOR_FAN_OUT_ITEMS", default=1_000)
