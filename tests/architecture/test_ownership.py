"""Who may do what only one place may do. Every exception is named here, with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture import tree

#: Where the ORM may see every tenant. Everything else works inside `tenant_scope`.
SEES_EVERY_TENANT = {
    "tenants.context": "defines the scope",
    "tenants.registration": "a tenant is found by its name before anybody acts for it",
    "tenants.members": "a superuser may act for a tenant that they are no member of",
    "tenants.admin_scope": "a superuser who has broken the glass of all tenants",
    "tenants.break_glass": "whose glass is broken, and of which tenant",
    "tenants.audit": "the chains of all tenants are read again, and their beginnings go when their time is over",
    "tenants.channels": "channels whose time is over are marked for all tenants at once",
    "tenants.events.hub": "one question for all logs that are followed in this process, and where PostgreSQL rings for them",
    "tenants.events.stream": "who may still read a stream, for the streams of all tenants together",
    "tenants.events.log": "logs of all tenants are numbered and purged together",
    "tenants.retention": "wishes of all tenants, for files that are swept together; who there is, who has left; the book over all tenants",
    "agents.health": "agents belong to no tenant, and all that need one hear of it",
    "agents.registry": "settings of every tenant go with an agent",
    "activities.receivers": "work of every tenant that an agent would leave standing",
    "pipelines.references": "schedules and pipelines of every tenant that refer to an agent",
    "activities.maintenance.scheduler": "bounds the connections of its runners",
    "activities.maintenance.leader": "the lease belongs to no tenant",
    "activities.maintenance.job_records": "how upkeep goes, which belongs to no tenant",
    "activities.outbox": "what is due, of all tenants in one statement",
    "activities.maintenance.recovery": "what was lost, whosever it was",
    "activities.provider_batches": "what waits for a batch or has to leave it, whosever it is; "
    "what the provider calls batches, whosever they are: tenants may share a credential; "
    "batches that are due, whosever they are",
    "activities.budgets": "budgets that have room again, whosever they are",
    "activities.human_tasks.deadlines": "what has come due, anyone who was asked",
    "activities.maintenance.platform_checks": "what is wrong with the platform, whosever work it holds up; "
    "all tenants that are concerned are told in one transaction",
    "activities.queue_stats": "which workers could take more, and nothing else of anybody",
    "activities.maintenance.counters": "the history of all tenants is added up together; "
    "numbers of the whole platform",
    "activities.dead_letters": "what nobody was told of yet, whosever it is",
    "activities.outputs": "the copier empties the spool of all tenants",
    "activities.bulk_jobs": "jobs that have something to do, whosever they are",
    "activities.notifications.delivery": "deliveries of all tenants are claimed in the order in which they are due",
    "activities.notifications.digests": "channels whose digest is due, whosever they are",
    "activities.background_tasks": "one question for what waits, whosever it is",
    "activities.admission.limits": "the caps of all tenants are put in force together",
    "activities.admission.rebuilding": "Redis is rebuilt for all tenants together",
    "activities.backlog": "a refusal is counted although its transaction is rolled back",
    "activities.worker": "the runs of this process, whosever they are",
    "activities.management.commands.rotate_credentials": "sealed secrets of all tenants are sealed again with the newest key",
    "activities.notifications.webhooks": "deliveries of all tenants are claimed in the order in which they are due",
    "activities.maintenance.retention": "notes of all tenants are settled with MongoDB together",
    "activities.maintenance.invariants": "whose the rows are that should not be, before somebody is told; "
    "what must hold over everything, in one snapshot that only reads",
    "console.page": "a superuser chooses among the tenants in which people are asked for something",
    "console.inbox.questions": "channels that want to be told of questions, whosever they are",
    "console.inbox.undo": "answers take effect when their time has come, of all tenants",
    "console.overview": "figures of the whole platform, for superusers",
    "orchestrator.offboarding.erasure": "tombstones belong to nobody any more",
    "orchestrator.metrics": "figures of the whole platform, without naming tenants",
    "orchestrator.cli": "commands of the platform: all tenants, and the one that an id belongs to",
    "orchestrator.demo.opening": "looks up the tenants that it may have made before",
    "pipelines.deliverables.monthly_job": "the monthly jobs of all tenants are kept together",
    "pipelines.schedules.beat": "the periodic tasks of all schedules are mended together",
    "pipelines.schedules.firing": "what has come, whosever schedule it is",
    "pipelines.schedules.system_jobs": "executions that have something to do, whosever they are",
    "pipelines.waiting_steps": "runs whose conditions wait to be evaluated, whosever they are; "
    "finds steps that wait for room, of all tenants; "
    "what has waited too long, whosever it is",
    "activities.mailboxes.consumer": "what dead consumers had goes back, whosever it is",
    "pipelines.management.commands.load_pipeline": "finds the only tenant when none is named",
    "pipelines.management.commands.load_schedule": "makes roles that the platform's registry lacks",
}

OWNS_TABLES = {
    "tenants.context": "defines the alias",
    "orchestrator.management.commands.migrate": "only the owner may change tables",
    "orchestrator.offboarding.erasure": "histories and the ledger of a tenant that leaves; nobody else may delete from them",
}

PUBLISHERS = {"activities.publishing": "builds and sends Celery's messages"}

AFTER_COMMIT = {
    "activities.relay": "hands over offers and releases once they are true",
    "tenants.tokens": "forgets a revoked token in this process",
}

CONNECTS_SIGNALS = {
    "orchestrator.celery": "Celery's own signals: a worker comes up and goes away",
    "activities.receivers": "a child that ends answers anyone who waits for it, in the same app",
    "activities.apps": "calls it when Django is ready",
    "pipelines.receivers": "the one place where the apps' signals are wired",
    "pipelines.apps": "calls it when Django is ready",
    "console.apps": "Django's own signal: somebody signed in, whose session begins with whether a code is still to come",
    "tenants.bounds": "Django's own signal: how many of a kind a tenant may own is asked before a row is made",
    "tenants.tracing.spans": "Django's own signal: a connection to PostgreSQL was opened, whose statements are traced",
}

SENDS_SIGNALS = {
    "activities.transitions": "an activity settled",
    "activities.cancellation": "an activity was opened again",
    "activities.dead_letters": "many were opened again",
    "activities.suspension": "which roles are in the plan of the work is asked",
    "activities.dead_letter_records": "an activity was put among the dead letters",
}

STARTS_THREADS = {
    "activities.maintenance": "who leads, in every worker and beat",
    "activities.maintenance.scheduler": "jobs of upkeep hold up none but themselves",
    "activities.leases": "heartbeat and watchdog",
    "activities.worker": "somebody looks after the host",
    "activities.relay": "the relay of this process",
    "activities.quick_work": "what waits behind a call that takes long is taken over",
    "activities.run_logs": "what agents say is written without their waiting for it",
    "tenants.postgresql.base": "a server that is silent is tried by one thread, and nobody waits for it",
    "tenants.events.hub": "carries the event streams of this process",
    "orchestrator.celery": "a signal handler must not touch the database, so draining happens beside it",
    "console.health": "a server that does not answer must not hold a request",
    "agents.outbound.transport": "a name service that does not answer must not hold a worker",
}


def test_only_named_modules_see_every_tenant() -> None:
    _same(_naming("system_scope", "SYSTEM"), SEES_EVERY_TENANT)


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
    wired = {module.name for module in tree.modules() if _connects(module)}

    _same(wired, CONNECTS_SIGNALS)


def test_no_business_rule_depends_on_model_signals() -> None:
    """But how many of a kind a tenant may own: that holds for the API, the admin, imports and commands alike."""
    assert tree.users_of("django.db.models.signals") == {"tenants.bounds"}


def test_signals_are_sent_so_that_a_failing_receiver_undoes_the_change() -> None:
    _same(tree.callers_of("send") & tree.users_of("activities.signals"), SENDS_SIGNALS)
    assert not tree.callers_of("send_robust")


def test_only_named_modules_start_threads() -> None:
    found = {
        name
        for name in tree.callers_of("Thread")
        if not tree.is_in(name, {"orchestrator.embedded", "orchestrator.processes"})
    }

    _same(found, STARTS_THREADS)


def test_the_status_of_an_activity_is_never_assigned() -> None:
    """`transitions` and its statements are the only writer; anyone who wants a change asks for a verb."""
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

    found = {path.stem for path in tree.files("*.sql") if writing.search(path.read_text(encoding="utf-8"))}
    found |= {module.name for module in tree.modules() if writing.search(module.text)}

    assert found == {"claim", "start", "finish", "requeue", "submit", "activities.transitions"}


def test_every_tenant_owned_query_of_a_view_names_its_tenant() -> None:
    """`.objects.all()` of a tenant's model would rely on row-level security alone."""
    careless = {
        str(module)
        for module in tree.modules()
        if ".api." in f"{module.name}."
        and re.search(r"\.objects\.(all|order_by|first|last|count)\(", module.text)
    }

    assert not careless


def _same(found: set[str], named: dict[str, str]) -> None:
    assert not found - named.keys(), f"not named in this file: {sorted(found - named.keys())}"
    assert not named.keys() - found, f"no longer so, take them off the list: {sorted(named.keys() - found)}"


def _naming(*names: str) -> set[str]:
    """The modules that say one of these names, whether as a name or as an attribute of `context`."""
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
    """`delay` is also what a retry policy has: as a call to Celery it belongs to a task, which is a module-level name."""
    senders = tree.callers_of("apply_async", "send_task", "lpush", "signature")
    for module in tree.modules():
        if "tasks" in {name.rpartition(".")[2] for name in module.imports} and module.name in tree.callers_of(
            "delay"
        ):
            senders.add(module.name)
    return senders


def _connects(module: tree.Module) -> bool:
    """Calls or decorates with `.connect` of a signal; sockets and databases have such a method, too."""
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
