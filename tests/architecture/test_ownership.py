"""Dangerous operations are reserved to the modules that are listed here, each with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture import tree

#: Modules in which the ORM may see every tenant. All others work inside `tenant_scope`.
SEES_EVERY_TENANT = {
    "tenants.context": "defines the scope",
    "tenants.registration": "a tenant is found by its name before anybody acts for it",
    "tenants.management.base": "finds the only tenant when none is named",
    "tenants.members": "a superuser may act for a tenant that they are no member of",
    "tenants.admin_scope": "a superuser with a break-glass session for all tenants",
    "tenants.break_glass": "which superusers have a break-glass session, and for which tenant",
    "tenants.audit": "the chains of all tenants are verified, and their oldest entries are purged",
    "tenants.sweeps": "reads the rows of regular work",
    "tenants.channels": "channels whose time is over are marked for all tenants at once",
    "tenants.events.hub": "one query for all logs that are followed in this process, and the notifications of PostgreSQL for them",
    "tenants.events.stream": "who may still read a stream, for the streams of all tenants together",
    "tenants.events.log": "logs of all tenants are numbered and purged together",
    "tenants.retention": "settings of all tenants, for files that are deleted together; which tenants have left; the ledger of all",
    "agents.health": "agents belong to no tenant, and all tenants that use one are alerted",
    "agents.registry": "settings of every tenant are deleted with an agent",
    "activities.receivers": "work of every tenant that needs an agent",
    "pipelines.references": "schedules and pipelines of every tenant that refer to an agent",
    "activities.maintenance.scheduler": "bounds the connections of its runners",
    "activities.maintenance.leader": "the lease belongs to no tenant",
    "activities.maintenance.job_records": "the state of upkeep, which belongs to no tenant",
    "activities.outbox": "due wakes of all tenants in one statement",
    "activities.maintenance.recovery": "lost work of all tenants",
    "activities.provider_batches": "work of all tenants that waits for a batch or has to leave it; "
    "batches at the provider, because tenants may share a credential; "
    "due batches of all tenants",
    "activities.budgets": "budgets of all tenants that have room again",
    "activities.human_tasks.deadlines": "due questions of all tenants",
    "activities.maintenance.platform_checks": "conditions of the platform and the work of all tenants that they hold up; "
    "all affected tenants are alerted in one transaction",
    "activities.queue_stats": "which workers have free seats, without anything of tenants",
    "activities.maintenance.counters": "the history of all tenants is added up together; "
    "numbers of the whole platform",
    "activities.dead_letters": "unreported dead letters of all tenants",
    "activities.outputs": "the copier empties the spool of all tenants",
    "activities.bulk_jobs": "open jobs of all tenants",
    "activities.notifications.delivery": "deliveries of all tenants are claimed in the order in which they are due",
    "activities.notifications.digests": "channels of all tenants whose digest is due",
    "activities.background_tasks": "one query for waiting rows of all tenants",
    "activities.admission.limits": "the caps of all tenants take effect together",
    "activities.admission.rebuilding": "Redis is rebuilt for all tenants together",
    "activities.backlog": "a refusal is counted although its transaction is rolled back",
    "activities.worker": "the runs of this process, of all tenants",
    "activities.management.commands.rotate_credentials": "sealed secrets of all tenants are sealed again with the newest key",
    "activities.notifications.webhooks": "deliveries of all tenants are claimed in the order in which they are due",
    "activities.maintenance.retention": "pending deletions of all tenants are carried out in MongoDB together",
    "activities.maintenance.invariants": "the tenants of rows that break an invariant; "
    "invariants over all tenants, in one read-only snapshot",
    "console.page": "a superuser chooses among the tenants that have questions to people",
    "console.inbox.questions": "channels of all tenants that are notified of questions",
    "console.inbox.undo": "due answers of all tenants take effect",
    "console.overview": "figures of the whole platform, for superusers",
    "orchestrator.offboarding.erasure": "tombstones belong to no tenant",
    "orchestrator.offboarding.export": "tombstones belong to no tenant",
    "orchestrator.metrics": "figures of the whole platform, without naming tenants",
    "orchestrator.cli": "commands of the platform: all tenants, and the one that an id belongs to",
    "orchestrator.demo.opening": "looks up the tenants of an earlier demonstration",
    "pipelines.deliverables.monthly_job": "the monthly jobs of all tenants are kept together",
    "pipelines.schedules.beat": "the periodic tasks of all schedules are repaired together",
    "pipelines.schedules.firing": "due schedules of all tenants",
    "pipelines.schedules.system_jobs": "open executions of all tenants",
    "pipelines.waiting_steps": "runs of all tenants whose conditions wait to be evaluated; "
    "steps of all tenants that wait for room; "
    "steps of all tenants that have waited too long",
    "activities.mailboxes.consumer": "expired batches of all tenants are released",
    "pipelines.management.commands.load_schedule": "creates roles that the platform's registry lacks",
}

OWNS_TABLES = {
    "tenants.context": "defines the alias",
    "orchestrator.management.commands.migrate": "only the owner may change tables",
    "orchestrator.offboarding.erasure": "deletes the histories and the ledger of a tenant that leaves, which nothing else may do",
}

PUBLISHERS = {"activities.publishing": "builds and sends Celery's messages"}

AFTER_COMMIT = {
    "activities.intake": "puts limits in force when a pause is stored, or has ended",
    "activities.relay": "hands over offers and releases once they are true",
    "tenants.tokens": "forgets a revoked token in this process",
}

CONNECTS_SIGNALS = {
    "orchestrator.celery": "Celery's own signals: a worker starts and stops",
    "activities.receivers": "a child that ends wakes the parent that waits for it, in the same app",
    "activities.apps": "calls it when Django is ready",
    "pipelines.receivers": "the one place where the apps' signals are connected",
    "pipelines.apps": "calls it when Django is ready",
    "console.apps": "Django's own signal: after a sign-in the session records whether a code is still needed",
    "tenants.bounds": "Django's own signal: the limit of rows per tenant is checked before a row is created",
    "tenants.tracing.spans": "Django's own signal: the statements of a new connection to PostgreSQL are traced",
}

SENDS_SIGNALS = {
    "activities.transitions": "an activity settled",
    "activities.cancellation": "an activity was reopened",
    "activities.dead_letters": "many activities were reopened",
    "activities.human_tasks.approvals": "asks for which work a gate may still request changes",
    "activities.api.allowed_actions": "asks which work belongs to cancelled pipeline runs",
    "activities.suspension": "asks which roles are in the plan of the work",
    "activities.dead_letter_records": "an activity became a dead letter",
}

STARTS_THREADS = {
    "activities.maintenance": "leader election, in every worker and beat",
    "activities.maintenance.scheduler": "a slow system job must not delay the others",
    "activities.leases": "heartbeat and watchdog",
    "activities.worker": "watches the load of the host",
    "activities.relay": "the relay of this process",
    "activities.quick_work": "takes over what waits behind a slow call",
    "activities.run_logs": "agents do not wait until their log is written",
    "tenants.postgresql.base": "one thread probes a silent server, so that no other waits for it",
    "tenants.events.hub": "sends the event streams of this process",
    "orchestrator.celery": "a signal handler must not use the database, so draining runs in a thread",
    "console.health": "a server that does not answer must not hold up a request",
    "agents.outbound.transport": "a name service that does not answer must not hold up a worker",
}


def test_only_named_modules_see_every_tenant() -> None:
    _same(_naming("system_scope", "SYSTEM", "Sweep"), SEES_EVERY_TENANT)


def test_only_migrations_work_as_the_owner_of_the_tables() -> None:
    _same(_naming("OWNER"), OWNS_TABLES)


def test_aliases_of_the_database_are_named_by_constants() -> None:
    """A text such as "system" would be missed by the two tests above."""
    texts = {
        module.name
        for module in tree.modules()
        for node in module.nodes
        if isinstance(node, ast.Call | ast.Subscript) and _names_an_alias(node)
    }

    assert not texts


def test_only_publishing_sends_messages() -> None:
    _same(_celery_senders(), PUBLISHERS)


def test_only_the_relay_acts_after_a_commit() -> None:
    _same(tree.callers_of("on_commit"), AFTER_COMMIT)


def test_signals_are_connected_in_one_place() -> None:
    _same({module.name for module in tree.modules() if _connects(module)}, CONNECTS_SIGNALS)


def test_no_business_rule_depends_on_model_signals() -> None:
    """The only exception limits how many rows a tenant may own, for the API, the admin, imports and commands alike."""
    assert tree.users_of("django.db.models.signals") == {"tenants.bounds"}


def test_signals_are_sent_so_that_a_failing_receiver_undoes_the_change() -> None:
    _same(tree.callers_of("send") & tree.users_of("activities.signals"), SENDS_SIGNALS)
    assert not tree.callers_of("send_robust")


def test_only_named_modules_start_threads() -> None:
    starters = {
        name
        for name in tree.callers_of("Thread")
        if not tree.is_in(name, {"orchestrator.embedded", "orchestrator.processes"})
    }

    _same(starters, STARTS_THREADS)


def test_the_status_of_an_activity_is_never_assigned() -> None:
    """Only `transitions` and its statements write it; other code applies a verb."""
    assigned = [
        f"{module}:{target.lineno}"
        for module in tree.modules()
        for target in _assigned(module)
        if target.attr == "status" and _is_an_activity(target.value)
    ]
    updated = [
        f"{module}:{call.lineno}" for module in tree.modules() for call in _updates_of_activities(module)
    ]

    assert not assigned + updated


def test_only_the_statements_of_transitions_write_the_status() -> None:
    writing = re.compile(
        r"UPDATE\s+activities_activity\s+(?:\w+\s+)?SET\s+status\b|INSERT\s+INTO\s+activities_activity\b",
        re.IGNORECASE,
    )

    writers = {path.stem for path in tree.files("*.sql") if writing.search(path.read_text(encoding="utf-8"))}
    writers |= {module.name for module in tree.modules() if writing.search(module.text)}

    assert writers == {"claim", "start", "finish", "requeue", "submit", "activities.transitions"}


def test_every_tenant_owned_query_of_a_view_names_its_tenant() -> None:
    """`.objects.all()` of a tenant's model would rely on row-level security alone."""
    careless = {
        str(module)
        for module in tree.modules()
        if ".api." in f"{module.name}."
        and re.search(r"\.objects\.(all|order_by|first|last|count)\(", module.text)
    }

    assert not careless


def _same(actual: set[str], listed: dict[str, str]) -> None:
    assert not actual - listed.keys(), f"not listed in this file: {sorted(actual - listed.keys())}"
    assert not listed.keys() - actual, f"no longer so, remove them: {sorted(listed.keys() - actual)}"


def _naming(*names: str) -> set[str]:
    """Return the modules that use one of these names, as a name or as an attribute of `context`."""
    return {
        module.name
        for module in tree.modules()
        for node in module.nodes
        if (isinstance(node, ast.Name) and node.id in names)
        or (isinstance(node, ast.Attribute) and node.attr in names and isinstance(node.value, ast.Name))
        or (isinstance(node, ast.FunctionDef) and node.name in names)
    }


def _names_an_alias(node: ast.Call | ast.Subscript) -> bool:
    aliases = ("default", "system", "owner")
    if isinstance(node, ast.Subscript):
        of_connections = isinstance(node.value, ast.Name) and node.value.id == "connections"
        return of_connections and isinstance(node.slice, ast.Constant) and node.slice.value in aliases
    using = [keyword.value for keyword in node.keywords if keyword.arg == "using"]
    using += node.args[:1] if tree.called_name(node) == "using" else []
    return any(isinstance(value, ast.Constant) and value.value in aliases for value in using)


def _celery_senders() -> set[str]:
    """`delay` counts only in modules that import tasks, because a retry policy has a `delay` as well."""
    senders = tree.callers_of("apply_async", "send_task", "lpush", "signature")
    for module in tree.modules():
        if "tasks" in {name.rpartition(".")[2] for name in module.imports} and module.name in tree.callers_of(
            "delay"
        ):
            senders.add(module.name)
    return senders


def _connects(module: tree.Module) -> bool:
    """Whether the module uses `.connect` of a signal. Sockets and databases have such a method as well."""
    if "django.dispatch.receiver" in module.imports:
        return True
    if not any({"signals", "receivers"} & set(name.split(".")) for name in module.imports):
        return False
    return any(isinstance(node, ast.Attribute) and node.attr == "connect" for node in module.nodes)


def _assigned(module: tree.Module) -> Iterator[ast.Attribute]:
    for node in module.nodes:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AugAssign | ast.AnnAssign)
            else []
        )
        yield from (target for target in targets if isinstance(target, ast.Attribute))


def _is_an_activity(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in {
        "activity",
        "waiting",
        "gate",
        "row",
        "moved",
        "rejected",
        "instance",
        "obj",
    }


def _updates_of_activities(module: tree.Module) -> Iterator[ast.Call]:
    """`Activity.objects...update(status=...)`, `.create(status=...)` and the like."""
    writers = ("update", "create", "update_or_create", "get_or_create", "bulk_create", "bulk_update")
    for call in module.calls():
        sets_status = tree.called_name(call) in writers and any(
            keyword.arg == "status" for keyword in call.keywords
        )
        if sets_status and "Activity" in {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}:
            yield call
