"""Settings of the engine. Each has a unit in its name and says what happens when it is too small or too large."""

from __future__ import annotations

import os

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

# How old a trace may be when work continues it. What begins later has a trace of its own, linked; 0 gives every run one.
ORCHESTRATOR_TRACE_SECONDS = _env.float("ORCHESTRATOR_TRACE_SECONDS", default=60.0)

# Agents and providers that ask to come back later (429) and do not say when: each further time in a row is waited for twice as long, up
# to BACKOFF. Smaller: they are called for nothing. People are told after ALERT, and the work fails after END. Smaller: an outage of a
# provider ends work that only had to wait. Larger: nobody hears of it.
ORCHESTRATOR_RATE_LIMITED_BACKOFF_SECONDS = _env.float(
    "ORCHESTRATOR_RATE_LIMITED_BACKOFF_SECONDS", default=300.0
)
ORCHESTRATOR_RATE_LIMITED_ALERT_SECONDS = _env.float("ORCHESTRATOR_RATE_LIMITED_ALERT_SECONDS", default=900.0)
ORCHESTRATOR_RATE_LIMITED_END_SECONDS = _env.float("ORCHESTRATOR_RATE_LIMITED_END_SECONDS", default=86_400.0)

# How many runs of a role, or of what a schedule starts, fail one after the other until people are told. 0: they are not told of that.
ORCHESTRATOR_ALERT_FAILURES_IN_A_ROW = _env.int("ORCHESTRATOR_ALERT_FAILURES_IN_A_ROW", default=5)

# How long before a channel expires people are told.
ORCHESTRATOR_CHANNEL_NOTICE_SECONDS = _env.float("ORCHESTRATOR_CHANNEL_NOTICE_SECONDS", default=86_400.0)

# A planner that hears of failures is woken for one kind of failure once in so long. Smaller: it plans again and again while all of a kind
# fails. Larger: it hears late that its new plan fails as the old one did.
ORCHESTRATOR_PLAN_AGAIN_SECONDS = _env.float("ORCHESTRATOR_PLAN_AGAIN_SECONDS", default=600.0)

# For how long one process may do the upkeep without renewing its lease. Too small: a busy machine changes its leader again and again. Too
# large: a frozen leader holds up delays, retries and recovery for as long.
ORCHESTRATOR_LEADER_LEASE_SECONDS = _env.float("ORCHESTRATOR_LEADER_LEASE_SECONDS", default=6.0)
# Whether this process may lead at all. 0 on replicas that shall not, such as workers at a slow link; some process must be allowed to.
ORCHESTRATOR_MAY_LEAD = _env.bool("ORCHESTRATOR_MAY_LEAD", default=True)
# How often the leader promotes what is due and offers what was forgotten. Smaller costs idle processor time.
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
# Runs of agents that answer at once (functions) which one thread claims and records together. 1: each alone, at three times the cost.
ORCHESTRATOR_RUNS_TOGETHER = _env.int("ORCHESTRATOR_RUNS_TOGETHER", default=16)

# Agents' work that may be under way at the same time, over all roles, tenants and workers. 0: as much as there are seats.
ORCHESTRATOR_MAX_CONCURRENCY = _env.int("ORCHESTRATOR_MAX_CONCURRENCY", default=0)

# People are told when workers do not take up what was granted so long ago. Smaller: a busy broker alarms. Must stay above REPUBLISH.
ORCHESTRATOR_IDLE_SECONDS = _env.float("ORCHESTRATOR_IDLE_SECONDS", default=30.0)
# People are told when work that could begin has waited so long. 0: never. Smaller: every burst alarms. Larger: a standstill shows late.
ORCHESTRATOR_QUEUE_TARGET_SECONDS = _env.float("ORCHESTRATOR_QUEUE_TARGET_SECONDS", default=3_600.0)

# A tenant's backlog per role: submissions beyond it are answered 429.
ORCHESTRATOR_MAX_BACKLOG = _env.int("ORCHESTRATOR_MAX_BACKLOG", default=200_000)

# Outbound calls. Entries are "host:port", for all purposes, or "agents=host:port" (webhooks, data-sources, notifications) for one alone;
# they are the only way around the address rules. Too wide: an address that a tenant enters reaches what was meant for agents.
ORCHESTRATOR_EGRESS_ALLOW = tuple(_env.list("AGENT_EGRESS_ALLOW", default=[]))
ORCHESTRATOR_EGRESS_DENY: tuple[str, ...] = ()
ORCHESTRATOR_AGENT_RESPONSE_MAX_BYTES = 1_000_000
# Python callables that the inline adapter may run, by dotted prefix.
ORCHESTRATOR_INLINE_CALLABLES = tuple(_env.list("ORCHESTRATOR_INLINE_CALLABLES", default=["agents.samples"]))

# How long an answer given in the console can be taken back before it takes effect; 0: it cannot. Too large: work waits for what is decided.
ORCHESTRATOR_UNDO_SECONDS = _env.float("ORCHESTRATOR_UNDO_SECONDS", default=10.0)
# How often the endpoints of HTTP agents are looked at, how soon again after a first failure, and how often while they are away. Too small:
# agents get calls that are no work. Too large: people hear late of one that is away, or back.
ORCHESTRATOR_HEALTH_INTERVAL_SECONDS = _env.float("ORCHESTRATOR_HEALTH_INTERVAL_SECONDS", default=300.0)
ORCHESTRATOR_HEALTH_RETRY_SECONDS = _env.float("ORCHESTRATOR_HEALTH_RETRY_SECONDS", default=30.0)
ORCHESTRATOR_HEALTH_PROBE_SECONDS = _env.float("ORCHESTRATOR_HEALTH_PROBE_SECONDS", default=60.0)
# How long one look may take. Too small: a slow agent counts as away. Too large: one that hangs holds up the others of its turn.
ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS = _env.float("ORCHESTRATOR_HEALTH_TIMEOUT_SECONDS", default=5.0)
# Model providers: the platform's keys, for roles without credentials and endpoint of their own, and where these keys are sent.
ANTHROPIC_API_KEY = _env("ANTHROPIC_API_KEY", default="")
ANTHROPIC_BASE_URL = _env("ANTHROPIC_BASE_URL", default="https://api.anthropic.com")
OPENAI_API_KEY = _env("OPENAI_API_KEY", default="")
OPENAI_BASE_URL = _env("OPENAI_BASE_URL", default="https://api.openai.com/v1")
# Who may spend these, and the credentials that the registry holds for roles of providers: a list of rules such as {"tenants": ["acme"],
# "roles": ["writer", "editor-*"], "models": ["claude-haiku-*"]}; what a rule leaves out is all of them, and one rule that fits is enough.
# Unset: every tenant, but no role with another provider or model than the registry gives it; with `make up` everything. A tenant's own
# key needs no rule.
# Too few: work fails (`agent_misconfigured`). Too many: a tenant's admin, or an agent that asks for a subtask, chooses what you pay for.
ORCHESTRATOR_PLATFORM_KEYS_FOR = _env.json("ORCHESTRATOR_PLATFORM_KEYS_FOR", default=None)
# What providers allow, by adapter or by "host:port": a tier's name (free, build, scale) or an object. A role's options go before it.
# None: only what providers say themselves. Too large: they refuse calls, and slots are halved. Too small: work waits for nothing.
ORCHESTRATOR_PROVIDER_LIMITS = _env.json("ORCHESTRATOR_PROVIDER_LIMITS", default={})
# Batches of providers. What is of this priority or less urgent may go with one. Smaller: urgent work waits for hours.
ORCHESTRATOR_BATCH_PRIORITY = _env.int("ORCHESTRATOR_BATCH_PRIORITY", default=20)
# A batch goes out when it holds so many items, or when its oldest has waited so long. Too small: many small batches, which the provider
# limits. Too large: work waits, and one lost batch is much.
ORCHESTRATOR_BATCH_SIZE = _env.int("ORCHESTRATOR_BATCH_SIZE", default=5_000)
ORCHESTRATOR_BATCH_MAX_BYTES = _env.int("ORCHESTRATOR_BATCH_MAX_BYTES", default=100_000_000)
ORCHESTRATOR_BATCH_AGE_SECONDS = _env.float("ORCHESTRATOR_BATCH_AGE_SECONDS", default=300.0)
# Work that is wanted within this time does not go, or wait, with a batch. Too small: late. Too large: paid in full for nothing.
ORCHESTRATOR_BATCH_MARGIN_SECONDS = _env.float("ORCHESTRATOR_BATCH_MARGIN_SECONDS", default=3_600.0)
# How often a batch is looked at, and after how long another process takes over one that somebody had in hand. The latter must stay above
# what a call to the provider may take (60 s). Smaller: a batch may be looked for while it is being sent.
ORCHESTRATOR_BATCH_POLL_SECONDS = _env.float("ORCHESTRATOR_BATCH_POLL_SECONDS", default=30.0)
ORCHESTRATOR_BATCH_LEASE_SECONDS = _env.float("ORCHESTRATOR_BATCH_LEASE_SECONDS", default=120.0)
# How long a run of such a role may take, its wait for the batch included, where nothing else is said.
ORCHESTRATOR_BATCH_TIMEOUT_SECONDS = 86_400
# What the answers to one batch may hold.
ORCHESTRATOR_BATCH_RESULT_MAX_BYTES = _env.int("ORCHESTRATOR_BATCH_RESULT_MAX_BYTES", default=256_000_000)
# Command-line agents. Programs that may be run, as operators write them in `options.command`; empty: none.
ORCHESTRATOR_CLI_COMMANDS = tuple(_env.list("ORCHESTRATOR_CLI_COMMANDS", default=[]))
# Whether they may run as the worker's own user, whose files they can then read. Off: each run has a user of its own where the worker may
# switch, else they are refused; `local` and `test` switch it on.
ORCHESTRATOR_CLI_SHARED_USER = _env.bool("ORCHESTRATOR_CLI_SHARED_USER", default=False)
# The numbers, first and last, of the users and groups that runs get; nobody else on the machine may have them.
ORCHESTRATOR_CLI_USERS = tuple(
    int(number) for number in _env("ORCHESTRATOR_CLI_USERS", default="20000-29999").split("-", 1)
)
# Repositories whose working copies such agents may get, by path.
ORCHESTRATOR_CLI_REPOSITORIES = tuple(_env.list("ORCHESTRATOR_CLI_REPOSITORIES", default=[]))
# What such an agent prints is kept up to this size and for so many days. Too small: the end of a long run is missing.
ORCHESTRATOR_TRANSCRIPT_MAX_BYTES = _env.int("ORCHESTRATOR_TRANSCRIPT_MAX_BYTES", default=5_000_000)
ORCHESTRATOR_TRANSCRIPT_DAYS = _env.float("ORCHESTRATOR_TRANSCRIPT_DAYS", default=30.0)

# Host protection. Shares of the host's, or the container's, processor and memory above which a worker takes no new work; 0: no target.
# Too small: workers stand idle. Too large: no protection. While a target is set, runs at once grow by one per RAMP_SECONDS.
ORCHESTRATOR_TARGET_CPU = _env.float("ORCHESTRATOR_TARGET_CPU", default=0.0)
ORCHESTRATOR_TARGET_MEMORY = _env.float("ORCHESTRATOR_TARGET_MEMORY", default=0.0)
ORCHESTRATOR_RAMP_SECONDS = _env.float("ORCHESTRATOR_RAMP_SECONDS", default=0.1)
ORCHESTRATOR_LOAD_SECONDS = _env.float("ORCHESTRATOR_LOAD_SECONDS", default=1.0)
# The runaway guard: starts per minute of one role for each of its workers, by the kind of adapter; 0: no limit. Of an adapter that
# is not named here: 600, as of any that calls somebody.
ORCHESTRATOR_STARTS_PER_MINUTE = {
    "cli": 10, "http": 600, "anthropic": 600, "openai": 600, "batch": 0, "inline": 0,
    **{adapter: int(starts) for adapter, starts in _env.dict("ORCHESTRATOR_STARTS_PER_MINUTE", default={}).items()},
}  # fmt: skip

# Where agents reach us. Empty: http://127.0.0.1:$PORT
ORCHESTRATOR_PUBLIC_URL = _env("ORCHESTRATOR_PUBLIC_URL", default="")

# Requests per second and tenant that the API accepts, and the burst above it.
ORCHESTRATOR_API_RATE = _env.float("ORCHESTRATOR_API_RATE", default=500.0)
ORCHESTRATOR_API_BURST = _env.float("ORCHESTRATOR_API_BURST", default=2000.0)
# The same for each token or person of a tenant. As large as the tenant's: no limit of its own.
ORCHESTRATOR_API_CALLER_RATE = _env.float("ORCHESTRATOR_API_CALLER_RATE", default=250.0)
ORCHESTRATOR_API_CALLER_BURST = _env.float("ORCHESTRATOR_API_CALLER_BURST", default=1000.0)
# Milliseconds of computing per second that the requests of a tenant may take in all web processes, and the burst above it. Half of what
# the web processes of this machine have, of which each computes on one core at a time: no tenant takes it all.
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

# The log of a run: what one line may hold, one call, and the whole of it. Too small: people see half of what an agent does. Too large: a
# talkative agent fills MongoDB.
ORCHESTRATOR_RUN_LOG_LINE_BYTES = _env.int("ORCHESTRATOR_RUN_LOG_LINE_BYTES", default=16 * 1024)
ORCHESTRATOR_RUN_LOG_CALL_LINES = _env.int("ORCHESTRATOR_RUN_LOG_CALL_LINES", default=500)
ORCHESTRATOR_RUN_LOG_CALL_BYTES = _env.int("ORCHESTRATOR_RUN_LOG_CALL_BYTES", default=256 * 1024)
ORCHESTRATOR_RUN_LOG_LINES = _env.int("ORCHESTRATOR_RUN_LOG_LINES", default=10_000)
ORCHESTRATOR_RUN_LOG_BYTES = _env.int("ORCHESTRATOR_RUN_LOG_BYTES", default=1_000_000)
# How often a worker writes what its agents have said, and how much of it may wait in one process while MongoDB is away. Smaller seconds:
# more documents. Larger: people see it later, and more is lost with the process. Smaller bytes: more is lost. Larger: memory.
ORCHESTRATOR_RUN_LOG_SECONDS = _env.float("ORCHESTRATOR_RUN_LOG_SECONDS", default=0.5)
ORCHESTRATOR_RUN_LOG_BUFFER_BYTES = _env.int("ORCHESTRATOR_RUN_LOG_BUFFER_BYTES", default=4_000_000)

# Wakes without progress within the window, then people are asked. Too small: a lively discussion is cut off. Too large: a loop costs more.
ORCHESTRATOR_WAKE_BUDGET = _env.int("ORCHESTRATOR_WAKE_BUDGET", default=10)
ORCHESTRATOR_WAKE_BUDGET_SECONDS = 600.0

# Money. What a run is reckoned with before any of its role has said what it took: too small, and many start that are stopped
# half-way; too large, and few run at once near the cap. Prices are {model: [input, output]} in dollars per million tokens.
ORCHESTRATOR_RUN_ESTIMATE_USD = _env.float("ORCHESTRATOR_RUN_ESTIMATE_USD", default=0.05)
ORCHESTRATOR_RUN_ESTIMATE_TOKENS = _env.int("ORCHESTRATOR_RUN_ESTIMATE_TOKENS", default=10_000)
ORCHESTRATOR_MODEL_PRICES = _env.json("ORCHESTRATOR_MODEL_PRICES", default={})

# What one run, one activity and one tree of subtasks may ask for with tools. Too small: honest agents are refused.
ORCHESTRATOR_TOOL_CALLS_PER_RUN = 50
ORCHESTRATOR_SUBTASKS_PER_ACTIVITY = 5
ORCHESTRATOR_OPEN_REVIEWS_PER_ACTIVITY = 3
ORCHESTRATOR_SUBTASK_DEPTH = 3
ORCHESTRATOR_ACTIVITIES_PER_TREE = 100
ORCHESTRATOR_REASSIGNMENTS = 3
# Which roles an agent may hand work to, by subtask or reassignment: {"writer": ["@related", "fact-checker"], "acme/writer": []}. "*" as a
# key is every role that is not named, "acme/..." holds at the tenant acme alone and goes first; in a list "*" is every role, "@related"
# those of the same pipeline or deliverable, or every role where the work is part of neither. Who is not named has ["*"], and in production
# ["@related"]. Too few: agents are refused (403) and do without. Too many: a hijacked agent can have its words worked on by any role.
ORCHESTRATOR_HANDS_WORK_TO = _env.json("ORCHESTRATOR_HANDS_WORK_TO", default={})
ORCHESTRATOR_LINKS_PER_APPROVAL = 500
ORCHESTRATOR_LINKS_PER_AGENT_APPROVAL = 50
ORCHESTRATOR_TOOL_RATE = 1.0
ORCHESTRATOR_TOOL_BURST = 200
ORCHESTRATOR_OPEN_ITEMS_PER_AGENT = _env.int("ORCHESTRATOR_OPEN_ITEMS_PER_AGENT", default=200)

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

# Mailboxes. How long after the first message of an idle session others still join its run: too small, and an agent is started for each
# word; too large, and it answers late. Before the first retry (it doubles), and how much may wait in one mailbox.
ORCHESTRATOR_MAILBOX_WINDOW_MS = _env.int("ORCHESTRATOR_MAILBOX_WINDOW_MS", default=50)
ORCHESTRATOR_MAILBOX_RETRY_SECONDS = _env.float("ORCHESTRATOR_MAILBOX_RETRY_SECONDS", default=1.0)
ORCHESTRATOR_MAILBOX_ITEMS = _env.int("ORCHESTRATOR_MAILBOX_ITEMS", default=10_000)
# Events are kept for so long, and so are deliveries by webhooks. Too small: a reader away for longer has to read everything again. Must be
# more than the retries of webhooks take, three days.
ORCHESTRATOR_EVENT_DAYS = _env.float("ORCHESTRATOR_EVENT_DAYS", default=7.0)
# Event streams open at once, of one tenant, of one token or person, and in one web process. Each costs a socket and no thread.
ORCHESTRATOR_STREAMS_PER_TENANT = _env.int("ORCHESTRATOR_STREAMS_PER_TENANT", default=100)
ORCHESTRATOR_STREAMS_PER_CALLER = _env.int("ORCHESTRATOR_STREAMS_PER_CALLER", default=20)
ORCHESTRATOR_STREAMS_PER_PROCESS = _env.int("ORCHESTRATOR_STREAMS_PER_PROCESS", default=1_000)
# A stream that has nothing to say says so this often. Too large: proxies close it, and clients that are gone are noticed late.
ORCHESTRATOR_STREAM_KEEPALIVE_SECONDS = _env.float("ORCHESTRATOR_STREAM_KEEPALIVE_SECONDS", default=15.0)
# Webhooks. How long a receiver may take, how many calls to one may be under way, after how many days without a success one is switched
# off, and how many a tenant may have. A large lane helps one busy receiver and takes workers from the others.
ORCHESTRATOR_WEBHOOK_TIMEOUT_SECONDS = _env.float("ORCHESTRATOR_WEBHOOK_TIMEOUT_SECONDS", default=15.0)
ORCHESTRATOR_WEBHOOK_LANE = _env.int("ORCHESTRATOR_WEBHOOK_LANE", default=4)
# Calls of a deliverer of webhooks or alerts that are under way at once, each in a thread, and those of one tenant in all deliverers. The
# first must be well above the second, or few tenants with slow receivers keep the others waiting.
ORCHESTRATOR_DELIVERY_THREADS = _env.int("ORCHESTRATOR_DELIVERY_THREADS", default=32)
ORCHESTRATOR_DELIVERY_TENANT_LANE = _env.int("ORCHESTRATOR_DELIVERY_TENANT_LANE", default=8)
ORCHESTRATOR_WEBHOOK_OFF_AFTER_DAYS = _env.float("ORCHESTRATOR_WEBHOOK_OFF_AFTER_DAYS", default=5.0)
ORCHESTRATOR_WEBHOOKS_PER_TENANT = _env.int("ORCHESTRATOR_WEBHOOKS_PER_TENANT", default=50)
# What a tenant may own, by kind; a tenant may have bounds of its own. Too small: tenants are refused (409). Too large: one fills tables.
ORCHESTRATOR_OWNED_PER_TENANT = {
    "schedules": 1_000, "pipelines": 1_000, "pipeline_versions": 10_000, "templates": 1_000, "skills": 1_000, "tokens": 1_000,
    "saved_views": 5_000, "mailboxes": 10_000,
    **{kind: int(most) for kind, most in _env.dict("ORCHESTRATOR_OWNED_PER_TENANT", default={}).items()},
}  # fmt: skip
# Proxies of ours in front of the web processes. Too large: callers choose the address that lock-outs and the audit trail know them by.
# Too small: all callers seem to come from the proxy, and one of them locks all out.
ORCHESTRATOR_PROXY_HOPS = _env.int("ORCHESTRATOR_PROXY_HOPS", default=0)
# Guessing. Failures that an address may have at once at one account (a token: from everywhere), and at all; one more is forgiven every so
# many seconds. Too small: people who mistype wait. Too large: passwords are guessed faster.
ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = _env.int("ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT", default=5)
ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS = _env.int("ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS", default=30)
ORCHESTRATOR_LOGIN_FORGIVEN_SECONDS = _env.float("ORCHESTRATOR_LOGIN_FORGIVEN_SECONDS", default=180.0)
# Failures that all addresses together may have at once at the login of one account. Beyond them whoever comes with a browser that has
# never signed in to it gets one attempt every so many seconds. Too small: others' guesses slow people down in new browsers. Too large:
# passwords are guessed faster from many addresses.
ORCHESTRATOR_LOGIN_FAILURES_OF_STRANGERS = _env.int("ORCHESTRATOR_LOGIN_FAILURES_OF_STRANGERS", default=50)
ORCHESTRATOR_LOGIN_STRANGERS_SECONDS = _env.float("ORCHESTRATOR_LOGIN_STRANGERS_SECONDS", default=10.0)
# For how long a browser is known after it has signed in. Too small: known browsers wait with the strangers. Too large: a copied cookie
# has guesses of its own (as few as an address has) for as long.
ORCHESTRATOR_LOGIN_DEVICE_SECONDS = _env.float("ORCHESTRATOR_LOGIN_DEVICE_SECONDS", default=90 * 86_400.0)
# Whether people with admin rights must have a second factor: "required" (what production takes if nothing is said) or "optional". Who
# has set one up is asked for it in either case.
ORCHESTRATOR_SECOND_FACTOR = _env("ORCHESTRATOR_SECOND_FACTOR", default="optional")
# Under which address people open the console, such as https://console.example.com: switches passkeys on as a second factor (needs
# requirements/passkeys.txt). Passkeys are bound to its host name: with another one all of them open nothing any more.
ORCHESTRATOR_PASSKEY_ORIGIN = _env("ORCHESTRATOR_PASSKEY_ORIGIN", default="").rstrip("/")
# For how long a superuser who broke the glass sees rows of tenants. Too small: the reason is stated again and again.
ORCHESTRATOR_BREAK_GLASS_SECONDS = _env.float("ORCHESTRATOR_BREAK_GLASS_SECONDS", default=3600.0)
# Days for which rows of a kind are kept once they are over; null: for ever. Tenants may say otherwise (see docs/retention.md). What is
# given is merged with these. Too small: people look for what is gone. Too large: tables grow.
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
