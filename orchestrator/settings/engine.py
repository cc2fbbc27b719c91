"""Settings of the engine. Each has a unit in its name, and a comment on what happens if it is too small or too large."""

from __future__ import annotations

import os

from orchestrator.settings.environment import Env
from orchestrator.settings.services import HOME

_env = Env()

# Liveness of workers. Too small: a busy machine loses live runs. Too large: the work of a dead process waits.
ORCHESTRATOR_HEARTBEAT_SECONDS = _env.float("ORCHESTRATOR_HEARTBEAT_SECONDS", default=5.0)
ORCHESTRATOR_LOST_AFTER_SECONDS = _env.float("ORCHESTRATOR_LOST_AFTER_SECONDS", default=30.0)
# A process that could not send a heartbeat for this long ends itself. Must be below LOST_AFTER, or two may work on the same run.
ORCHESTRATOR_WATCHDOG_SECONDS = _env.float("ORCHESTRATOR_WATCHDOG_SECONDS", default=25.0)

# An accepted run whose agent has sent heartbeats and then none for this long is lost. Too small: a slow agent runs twice.
ORCHESTRATOR_AGENT_SILENT_SECONDS = _env.float("ORCHESTRATOR_AGENT_SILENT_SECONDS", default=60.0)

# Maximum age of a trace that work continues. Later work starts its own, linked trace; 0 gives every run its own.
ORCHESTRATOR_TRACE_SECONDS = _env.float("ORCHESTRATOR_TRACE_SECONDS", default=60.0)

# Agents and providers that answer 429 without a delay: each further time in a row the wait doubles, up to BACKOFF. Smaller: useless calls.
# People are notified after ALERT, and the work fails after END. Smaller: an outage of a provider fails work that could have waited. Larger:
# nobody notices.
ORCHESTRATOR_RATE_LIMITED_BACKOFF_SECONDS = _env.float(
    "ORCHESTRATOR_RATE_LIMITED_BACKOFF_SECONDS", default=300.0
)
ORCHESTRATOR_RATE_LIMITED_ALERT_SECONDS = _env.float("ORCHESTRATOR_RATE_LIMITED_ALERT_SECONDS", default=900.0)
ORCHESTRATOR_RATE_LIMITED_END_SECONDS = _env.float("ORCHESTRATOR_RATE_LIMITED_END_SECONDS", default=86_400.0)

# Number of consecutive failed runs of a role or a schedule after which people are notified. 0: never.
ORCHESTRATOR_ALERT_FAILURES_IN_A_ROW = _env.int("ORCHESTRATOR_ALERT_FAILURES_IN_A_ROW", default=5)

# How long before the end of a channel's access people are notified.
ORCHESTRATOR_CHANNEL_NOTICE_SECONDS = _env.float("ORCHESTRATOR_CHANNEL_NOTICE_SECONDS", default=86_400.0)

# Minimum time between two wakes of a planner for the same kind of failure. Smaller: it plans repeatedly while everything fails. Larger: it
# learns late that its new plan fails too.
ORCHESTRATOR_PLAN_AGAIN_SECONDS = _env.float("ORCHESTRATOR_PLAN_AGAIN_SECONDS", default=600.0)

# Lease of the leader, which does the upkeep. Too small: the leader changes often on a busy machine. Too large: a frozen leader delays
# timers, retries and recovery for as long.
ORCHESTRATOR_LEADER_LEASE_SECONDS = _env.float("ORCHESTRATOR_LEADER_LEASE_SECONDS", default=6.0)
# Whether this process may lead. Set 0 on processes that should not, such as workers with a slow connection; at least one must be allowed.
ORCHESTRATOR_MAY_LEAD = _env.bool("ORCHESTRATOR_MAY_LEAD", default=True)
# How often the leader promotes due work and offers forgotten work. Smaller: more processor time when idle.
ORCHESTRATOR_TICK_SECONDS = _env.float("ORCHESTRATOR_TICK_SECONDS", default=1.0)
ORCHESTRATOR_PROMOTE_PER_TICK = 100  # limits the work of one pass
# A grant that no worker has claimed is published again after this long; duplicates are refused at the claim.
ORCHESTRATOR_REPUBLISH_SECONDS = _env.float("ORCHESTRATOR_REPUBLISH_SECONDS", default=10.0)

ORCHESTRATOR_MAX_STALLS = 2  # a third stall is final
ORCHESTRATOR_DEFAULT_TIMEOUT_SECONDS = 660
ORCHESTRATOR_MAX_ROUNDS = 5  # revisions of one step before people must intervene

# Fairness. Work of a lower band that has waited for longer than this gets a guaranteed share of the grants.
ORCHESTRATOR_AGEING_SECONDS = _env.float("ORCHESTRATOR_AGEING_SECONDS", default=30.0)
ORCHESTRATOR_AGED_SHARE = 5  # one in this many grants goes to aged work, if there is any

# Redis. Too large: a frozen Redis blocks the relay for longer (nothing else waits for it).
ORCHESTRATOR_REDIS_TIMEOUT_SECONDS = 2.0
ORCHESTRATOR_REDIS_PREFIX = _env("ORCHESTRATOR_REDIS_PREFIX", default="orchestrator:")

# A worker takes further granted activities directly, without a message, until its own message is this old.
ORCHESTRATOR_CONTINUE_SECONDS = _env.float("ORCHESTRATOR_CONTINUE_SECONDS", default=1.0)
# Number of runs of inline agents that one thread claims and records together. 1: each separately, at three times the cost.
ORCHESTRATOR_RUNS_TOGETHER = _env.int("ORCHESTRATOR_RUNS_TOGETHER", default=16)

# Maximum number of concurrent runs over all roles, tenants and workers. 0: only the number of seats limits them.
ORCHESTRATOR_MAX_CONCURRENCY = _env.int("ORCHESTRATOR_MAX_CONCURRENCY", default=0)

# People are notified if a grant is not claimed for this long. Smaller: a busy broker causes alerts. Must be above REPUBLISH.
ORCHESTRATOR_IDLE_SECONDS = _env.float("ORCHESTRATOR_IDLE_SECONDS", default=30.0)
# People are notified if ready work has waited for this long. 0: never. Smaller: every burst causes alerts. Larger: a standstill shows late.
ORCHESTRATOR_QUEUE_TARGET_SECONDS = _env.float("ORCHESTRATOR_QUEUE_TARGET_SECONDS", default=3_600.0)

# Maximum backlog of a tenant per role: further submissions are answered 429.
ORCHESTRATOR_MAX_BACKLOG = _env.int("ORCHESTRATOR_MAX_BACKLOG", default=200_000)

# Exceptions from the rules for outbound calls: "host:port" for all purposes, or with one purpose, as in "agents=host:port" (or webhooks,
# data-sources, notifications). Too wide: an address that a tenant enters reaches what was meant for agents.
ORCHESTRATOR_EGRESS_ALLOW = tuple(_env.list("AGENT_EGRESS_ALLOW", default=[]))
ORCHESTRATOR_EGRESS_DENY: tuple[str, ...] = ()
ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES = 1_000_000
# Python callables that the inline adapter may run, by dotted prefix.
ORCHESTRATOR_INLINE_CALLABLES = tuple(_env.list("ORCHESTRATOR_INLINE_CALLABLES", default=["agents.samples"]))

# How long a decision in the console can be undone before it takes effect; 0: not at all. Too large: work waits although it is decided.
ORCHESTRATOR_UNDO_SECONDS = _env.float("ORCHESTRATOR_UNDO_SECONDS", default=10.0)
# Health checks of HTTP agents: the usual interval, the interval after a first failure, and while an agent is down. Too small: needless
# calls. Too large: people learn late that an agent is down, or up again.
ORCHESTRATOR_HEALTH_INTERVAL_SECONDS = _env.float("ORCHESTRATOR_HEALTH_INTERVAL_SECONDS", default=300.0)
ORCHESTRATOR_HEALTH_RETRY_SECONDS = _env.float("ORCHESTRATOR_HEALTH_RETRY_SECONDS", default=30.0)
ORCHESTRATOR_HEALTH_PROBE_SECONDS = _env.float("ORCHESTRATOR_HEALTH_PROBE_SECONDS", default=60.0)
# Time limit of one health check. Too small: a slow agent counts as down. Too large: a hanging agent delays the checks of others.
ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS = _env.float("ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS", default=5.0)
# Model providers: the platform's keys, for roles without their own credentials and endpoint, and the URLs that these keys are sent to.
ANTHROPIC_API_KEY = _env("ANTHROPIC_API_KEY", default="")
ANTHROPIC_BASE_URL = _env.web_address("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
OPENAI_API_KEY = _env("OPENAI_API_KEY", default="")
OPENAI_BASE_URL = _env.web_address("OPENAI_BASE_URL", "https://api.openai.com/v1")
# Who may use these keys, and the registry's credentials for roles of providers: a list of rules such as {"tenants": ["acme"],
# "roles": ["writer", "editor-*"], "models": ["claude-haiku-*"]}. A missing member means all, and one matching rule is enough.
# Unset: every tenant, but only with the registry's provider and model of a role; with `make up` everything. A tenant's own key needs no
# rule.
# Too few: work fails (`agent_misconfigured`). Too many: a tenant's admin, or an agent that creates a subtask, chooses what you pay for.
ORCHESTRATOR_PLATFORM_KEYS_FOR = _env.json("ORCHESTRATOR_PLATFORM_KEYS_FOR", default=None)
# Limits of providers, by adapter or by "host:port": a tier's name (free, build, scale) or an object. A role's options override them.
# Missing: only the limits that providers report. Too large: they refuse calls, and slots are halved. Too small: work waits needlessly.
ORCHESTRATOR_PROVIDER_LIMITS = _env.json("ORCHESTRATOR_PROVIDER_LIMITS", default={})
# Batches of providers. Work of this priority or less urgent may use them. Smaller: urgent work waits for hours.
ORCHESTRATOR_BATCH_PRIORITY = _env.int("ORCHESTRATOR_BATCH_PRIORITY", default=20)
# A batch is sent when it has this many items or bytes, or when its oldest item is this old. Too small: many small batches, which the
# provider limits. Too large: work waits, and losing one batch loses much.
ORCHESTRATOR_BATCH_SIZE = _env.int("ORCHESTRATOR_BATCH_SIZE", default=5_000)
ORCHESTRATOR_BATCH_MAX_BYTES = _env.int("ORCHESTRATOR_BATCH_MAX_BYTES", default=100_000_000)
ORCHESTRATOR_BATCH_AGE_SECONDS = _env.float("ORCHESTRATOR_BATCH_AGE_SECONDS", default=300.0)
# Work that is due within this time does not use a batch, or leaves it. Too small: results are late. Too large: the full price is paid
# needlessly.
ORCHESTRATOR_BATCH_MARGIN_SECONDS = _env.float("ORCHESTRATOR_BATCH_MARGIN_SECONDS", default=3_600.0)
# How often a batch is polled, and the lease of a process that handles one. The lease must be longer than a call to the provider (60 s).
# Smaller: a batch may be searched for while it is being sent.
ORCHESTRATOR_BATCH_POLL_SECONDS = _env.float("ORCHESTRATOR_BATCH_POLL_SECONDS", default=30.0)
ORCHESTRATOR_BATCH_LEASE_SECONDS = _env.float("ORCHESTRATOR_BATCH_LEASE_SECONDS", default=120.0)
# Default timeout of a run of such a role, including its wait for the batch.
ORCHESTRATOR_BATCH_TIMEOUT_SECONDS = 86_400
# Maximum size of the answers to one batch.
ORCHESTRATOR_BATCH_RESULT_MAX_BYTES = _env.int("ORCHESTRATOR_BATCH_RESULT_MAX_BYTES", default=256_000_000)
# Command-line agents. The programs that may be run, as written in `options.command`; empty: none.
ORCHESTRATOR_CLI_COMMANDS = tuple(_env.list("ORCHESTRATOR_CLI_COMMANDS", default=[]))
# Whether they may run as the worker's user, whose files they can then read. Off: each run has its own user if the worker may switch users,
# otherwise runs are refused. On in `local` and `test`.
ORCHESTRATOR_CLI_SHARED_USER = _env.bool("ORCHESTRATOR_CLI_SHARED_USER", default=False)
# The range of user and group ids of runs; nothing else on the machine may use them.
ORCHESTRATOR_CLI_USERS = tuple(
    int(number) for number in _env("ORCHESTRATOR_CLI_USERS", default="20000-29999").split("-", 1)
)
# Paths of the repositories of which such agents may get working copies.
ORCHESTRATOR_CLI_REPOSITORIES = tuple(_env.list("ORCHESTRATOR_CLI_REPOSITORIES", default=[]))
# The output of such an agent is stored up to this size and for this many days. Too small: the end of a long run is missing.
ORCHESTRATOR_TRANSCRIPT_MAX_BYTES = _env.int("ORCHESTRATOR_TRANSCRIPT_MAX_BYTES", default=5_000_000)
ORCHESTRATOR_TRANSCRIPT_DAYS = _env.float("ORCHESTRATOR_TRANSCRIPT_DAYS", default=30.0)

# Host protection. Shares of the processor and memory of the host or container above which a worker takes no new work; 0: no target.
# Too small: workers are idle. Too large: no protection. With a target, concurrent runs grow by one per RAMP_SECONDS.
ORCHESTRATOR_TARGET_CPU = _env.float("ORCHESTRATOR_TARGET_CPU", default=0.0)
ORCHESTRATOR_TARGET_MEMORY = _env.float("ORCHESTRATOR_TARGET_MEMORY", default=0.0)
ORCHESTRATOR_RAMP_SECONDS = _env.float("ORCHESTRATOR_RAMP_SECONDS", default=0.1)
ORCHESTRATOR_LOAD_SECONDS = _env.float("ORCHESTRATOR_LOAD_SECONDS", default=1.0)
# The runaway guard: maximum starts per minute of one role for each of its workers, by adapter; 0: no limit. Adapters that are not listed
# have 600.
ORCHESTRATOR_STARTS_PER_MINUTE = {
    "cli": 10, "http": 600, "anthropic": 600, "openai": 600, "batch": 0, "inline": 0,
    **{adapter: int(starts) for adapter, starts in _env.dict("ORCHESTRATOR_STARTS_PER_MINUTE", default={}).items()},
}  # fmt: skip

# URL by which agents reach us. Empty: http://127.0.0.1:$PORT
ORCHESTRATOR_PUBLIC_URL = _env.web_address("ORCHESTRATOR_PUBLIC_URL")

# Requests per second that the API accepts from a tenant, and the burst.
ORCHESTRATOR_API_RATE = _env.float("ORCHESTRATOR_API_RATE", default=500.0)
ORCHESTRATOR_API_BURST = _env.float("ORCHESTRATOR_API_BURST", default=2000.0)
# The same for each token or person of a tenant. As large as the tenant's: no separate limit.
ORCHESTRATOR_API_CALLER_RATE = _env.float("ORCHESTRATOR_API_CALLER_RATE", default=250.0)
ORCHESTRATOR_API_CALLER_BURST = _env.float("ORCHESTRATOR_API_CALLER_BURST", default=1000.0)
# Milliseconds of computing per second that a tenant's requests may use in all web processes, and the burst. The default is half of what the
# web processes of this machine have (one core each), so that no tenant can use all of it.
ORCHESTRATOR_API_WORK_MS_RATE = _env.float(
    "ORCHESTRATOR_API_WORK_MS_RATE",
    default=500.0 * min(int(_env("WEB_CONCURRENCY", default="") or 1), os.cpu_count() or 1),
)
ORCHESTRATOR_API_WORK_MS_BURST = _env.float(
    "ORCHESTRATOR_API_WORK_MS_BURST", default=5 * ORCHESTRATOR_API_WORK_MS_RATE
)
# Bodies larger than this are answered 413.
ORCHESTRATOR_MAX_BODY_BYTES = 256 * 1024
ORCHESTRATOR_MAX_OUTPUT_BYTES = 1024 * 1024

# Limits of a run's log: per line, per call, and in total. Too small: people miss much of what an agent does. Too large: a verbose agent
# fills MongoDB.
ORCHESTRATOR_RUN_LOG_LINE_BYTES = _env.int("ORCHESTRATOR_RUN_LOG_LINE_BYTES", default=16 * 1024)
ORCHESTRATOR_RUN_LOG_CALL_LINES = _env.int("ORCHESTRATOR_RUN_LOG_CALL_LINES", default=500)
ORCHESTRATOR_RUN_LOG_CALL_BYTES = _env.int("ORCHESTRATOR_RUN_LOG_CALL_BYTES", default=256 * 1024)
ORCHESTRATOR_RUN_LOG_LINES = _env.int("ORCHESTRATOR_RUN_LOG_LINES", default=10_000)
ORCHESTRATOR_RUN_LOG_BYTES = _env.int("ORCHESTRATOR_RUN_LOG_BYTES", default=1_000_000)
# How often a worker writes the log lines of its agents, and how many bytes may wait in one process while MongoDB is down. Fewer seconds:
# more documents. More: people see lines later, and more is lost with the process. Fewer bytes: more is lost. More: memory.
ORCHESTRATOR_RUN_LOG_SECONDS = _env.float("ORCHESTRATOR_RUN_LOG_SECONDS", default=0.5)
ORCHESTRATOR_RUN_LOG_BUFFER_BYTES = _env.int("ORCHESTRATOR_RUN_LOG_BUFFER_BYTES", default=4_000_000)

# Number of wakes without progress within the window after which people are asked. Too small: interrupts long discussions. Too large: a loop
# costs more.
ORCHESTRATOR_WAKE_BUDGET = _env.int("ORCHESTRATOR_WAKE_BUDGET", default=10)
ORCHESTRATOR_WAKE_BUDGET_SECONDS = 600.0

# Money. The estimated cost of a run, until runs of its role have reported theirs. Too small: many runs start and are stopped half-way. Too
# large: few run at once near the cap. Prices are {model: [input, output]} in dollars per million tokens.
ORCHESTRATOR_RUN_ESTIMATE_USD = _env.float("ORCHESTRATOR_RUN_ESTIMATE_USD", default=0.05)
ORCHESTRATOR_RUN_ESTIMATE_TOKENS = _env.int("ORCHESTRATOR_RUN_ESTIMATE_TOKENS", default=10_000)
ORCHESTRATOR_MODEL_PRICES = _env.json("ORCHESTRATOR_MODEL_PRICES", default={})

# Limits of tool calls per run, activity and tree of subtasks. Too small: normal agents are refused.
ORCHESTRATOR_TOOL_CALLS_PER_RUN = 50
ORCHESTRATOR_SUBTASKS_PER_ACTIVITY = 5
ORCHESTRATOR_OPEN_REVIEWS_PER_ACTIVITY = 3
ORCHESTRATOR_SUBTASK_DEPTH = 3
ORCHESTRATOR_ACTIVITIES_PER_TREE = 100
ORCHESTRATOR_REASSIGNMENTS = 3
# The roles that an agent may give work to, by subtask or reassignment: {"writer": ["@related", "fact-checker"], "acme/writer": []}. The key
# "*" applies to all roles that are not listed; "acme/..." applies to the tenant acme only and comes first. In a list "*" is every role, and
# "@related" the roles of the same pipeline or deliverable, or every role if the work belongs to neither. The default is ["*"], in
# production ["@related"]. Too few: agents are refused (403). Too many: a hijacked agent can pass its text to any role.
ORCHESTRATOR_HANDS_WORK_TO = _env.json("ORCHESTRATOR_HANDS_WORK_TO", default={})
ORCHESTRATOR_LINKS_PER_APPROVAL = 500
ORCHESTRATOR_LINKS_PER_AGENT_APPROVAL = 50
ORCHESTRATOR_TOOL_RATE = 1.0
ORCHESTRATOR_TOOL_BURST = 200
ORCHESTRATOR_OPEN_ITEMS_PER_AGENT = _env.int("ORCHESTRATOR_OPEN_ITEMS_PER_AGENT", default=200)

# Data sources. The folder in which operators put files for tenants, in a subfolder per tenant id.
ORCHESTRATOR_DATA_FOLDER = _env("ORCHESTRATOR_DATA_FOLDER", default=str(HOME / "data"))
# Maximum size and time limit of sources outside the database. Too large: memory of a worker.
ORCHESTRATOR_DATA_SOURCE_BYTES = _env.int("ORCHESTRATOR_DATA_SOURCE_BYTES", default=16 * 1024 * 1024)
ORCHESTRATOR_DATA_SOURCE_SECONDS = _env.float("ORCHESTRATOR_DATA_SOURCE_SECONDS", default=30.0)
# Limits of a tenant's datasets. Too small: normal uploads are refused. Too large: one call keeps a transaction open for long.
ORCHESTRATOR_DATASETS_PER_TENANT = _env.int("ORCHESTRATOR_DATASETS_PER_TENANT", default=200)
ORCHESTRATOR_DATASET_ROWS = _env.int("ORCHESTRATOR_DATASET_ROWS", default=100_000)
ORCHESTRATOR_DATASET_ROWS_PER_CALL = _env.int("ORCHESTRATOR_DATASET_ROWS_PER_CALL", default=20_000)
ORCHESTRATOR_DATASET_BODY_BYTES = _env.int("ORCHESTRATOR_DATASET_BODY_BYTES", default=8 * 1024 * 1024)
# Rows with the source `cache` expire after this long.
ORCHESTRATOR_DATASET_CACHE_SECONDS = _env.int("ORCHESTRATOR_DATASET_CACHE_SECONDS", default=3600)
# Maximum items of a step with a for_each; a longer list fails the step. Too large: a step locks the run's row for long, and the input of a
# join grows.
ORCHESTRATOR_FAN_OUT_ITEMS = _env.int("ORCHESTRATOR_FAN_OUT_ITEMS", default=1_000)

# Mailboxes. WINDOW: how long after the first message of an idle session others may join its run. Too small: a run for each message. Too
# large: late answers. RETRY: the first retry delay, which doubles. ITEMS: how many items may wait in one mailbox.
ORCHESTRATOR_MAILBOX_WINDOW_MS = _env.int("ORCHESTRATOR_MAILBOX_WINDOW_MS", default=50)
ORCHESTRATOR_MAILBOX_RETRY_SECONDS = _env.float("ORCHESTRATOR_MAILBOX_RETRY_SECONDS", default=1.0)
ORCHESTRATOR_MAILBOX_ITEMS = _env.int("ORCHESTRATOR_MAILBOX_ITEMS", default=10_000)
# Retention of events and webhook deliveries. Too small: a reader that was offline for longer must read everything again. Must be longer
# than the retries of webhooks, which take three days.
ORCHESTRATOR_EVENT_DAYS = _env.float("ORCHESTRATOR_EVENT_DAYS", default=7.0)
# Maximum open event streams of a tenant, of a token or person, and in a web process. Each uses a socket but no thread.
ORCHESTRATOR_STREAMS_PER_TENANT = _env.int("ORCHESTRATOR_STREAMS_PER_TENANT", default=100)
ORCHESTRATOR_STREAMS_PER_CALLER = _env.int("ORCHESTRATOR_STREAMS_PER_CALLER", default=20)
ORCHESTRATOR_STREAMS_PER_PROCESS = _env.int("ORCHESTRATOR_STREAMS_PER_PROCESS", default=1_000)
# Interval of keep-alive messages in a stream without events. Too large: proxies close it, and lost clients are noticed late.
ORCHESTRATOR_STREAM_KEEPALIVE_SECONDS = _env.float("ORCHESTRATOR_STREAM_KEEPALIVE_SECONDS", default=15.0)
# Webhooks. Time limit of a call, concurrent calls to one webhook, days without a success after which it is switched off, and the number per
# tenant. A large lane helps one busy receiver and takes threads from the others.
ORCHESTRATOR_WEBHOOK_TIMEOUT_SECONDS = _env.float("ORCHESTRATOR_WEBHOOK_TIMEOUT_SECONDS", default=15.0)
ORCHESTRATOR_WEBHOOK_LANE = _env.int("ORCHESTRATOR_WEBHOOK_LANE", default=4)
# Concurrent calls of one deliverer of webhooks or alerts, each in a thread, and concurrent calls of one tenant over all deliverers. The
# first must be well above the second, or a few tenants with slow receivers delay the others.
ORCHESTRATOR_DELIVERY_THREADS = _env.int("ORCHESTRATOR_DELIVERY_THREADS", default=32)
ORCHESTRATOR_DELIVERY_TENANT_LANE = _env.int("ORCHESTRATOR_DELIVERY_TENANT_LANE", default=8)
ORCHESTRATOR_WEBHOOK_OFF_AFTER_DAYS = _env.float("ORCHESTRATOR_WEBHOOK_OFF_AFTER_DAYS", default=5.0)
ORCHESTRATOR_WEBHOOKS_PER_TENANT = _env.int("ORCHESTRATOR_WEBHOOKS_PER_TENANT", default=50)
# Maximum number of objects per tenant, by kind; a tenant may have its own limits. Too small: tenants are refused (409). Too large: one
# tenant fills tables.
ORCHESTRATOR_OWNED_PER_TENANT = {
    "schedules": 1_000, "pipelines": 1_000, "pipeline_versions": 10_000, "templates": 1_000, "skills": 1_000, "tokens": 1_000,
    "saved_views": 5_000, "mailboxes": 10_000,
    **{kind: int(most) for kind, most in _env.dict("ORCHESTRATOR_OWNED_PER_TENANT", default={}).items()},
}  # fmt: skip
# Number of our proxies in front of the web processes. Too large: callers can forge the address that lock-outs and the audit trail use.
# Too small: all callers seem to come from the proxy, and one of them locks all out.
ORCHESTRATOR_PROXY_HOPS = _env.int("ORCHESTRATOR_PROXY_HOPS", default=0)
# Login throttling. Failures allowed to an address at one account (for a token: from everywhere), and in total; one failure is forgiven
# every FORGIVEN_SECONDS. Too small: people who mistype must wait. Too large: passwords are guessed faster.
ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = _env.int("ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT", default=5)
ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS = _env.int("ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS", default=30)
ORCHESTRATOR_LOGIN_FORGIVEN_SECONDS = _env.float("ORCHESTRATOR_LOGIN_FORGIVEN_SECONDS", default=180.0)
# Failures allowed to all addresses together at one account. After that, browsers that have never signed in to it get one attempt every
# STRANGERS_SECONDS. Too small: guesses of others slow people down in new browsers. Too large: passwords are guessed faster from many
# addresses.
ORCHESTRATOR_LOGIN_FAILURES_OF_STRANGERS = _env.int("ORCHESTRATOR_LOGIN_FAILURES_OF_STRANGERS", default=50)
ORCHESTRATOR_LOGIN_STRANGERS_SECONDS = _env.float("ORCHESTRATOR_LOGIN_STRANGERS_SECONDS", default=10.0)
# How long a browser counts as known after signing in. Too small: known browsers wait like unknown ones. Too large: a copied cookie has its
# own attempts (as few as an address) for as long.
ORCHESTRATOR_LOGIN_DEVICE_SECONDS = _env.float("ORCHESTRATOR_LOGIN_DEVICE_SECONDS", default=90 * 86_400.0)
# Whether people with admin rights must have a second factor: "required" (the default in production) or "optional". People who have one must
# always use it.
ORCHESTRATOR_SECOND_FACTOR = _env("ORCHESTRATOR_SECOND_FACTOR", default="optional")
# URL of the console, such as https://console.example.com. It enables passkeys as a second factor (needs requirements/passkeys.txt).
# Passkeys are bound to its host name: after a change all existing passkeys are useless.
ORCHESTRATOR_PASSKEY_ORIGIN = _env("ORCHESTRATOR_PASSKEY_ORIGIN", default="").rstrip("/")
# How long a superuser with break-glass access sees rows of tenants. Too small: the reason must be entered again and again.
ORCHESTRATOR_BREAK_GLASS_SECONDS = _env.float("ORCHESTRATOR_BREAK_GLASS_SECONDS", default=3600.0)
# Days for which ended rows are kept, by kind; null: forever. Tenants may override them (see docs/retention.md). The variable is merged with
# these defaults. Too small: people miss deleted rows. Too large: tables grow.
ORCHESTRATOR_RETENTION_DAYS = {
    "activities": 90,
    "agent_sessions": 90,
    "alerts": 90,
    "bulk_jobs": 90,
    "dead_letters": 90,
    "idempotency_keys": 1,
    "mailboxes": 90,
    "pipeline_runs": 90,
    "provider_batches": 90,
    "schedule_executions": 90,
    "schedule_firings": 90,
    "tool_calls": 30,
    "transcripts": ORCHESTRATOR_TRANSCRIPT_DAYS,
    "usage": 400,
    **_env.json("ORCHESTRATOR_RETENTION_DAYS", default={}),
}
