"""`manage.py replay activity|failures|run`: replays failed work, or a pipeline run from one of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from activities import dead_letters
from activities.models import DeadLetter
from activities.models.dead_letter import DeadLetterState
from orchestrator import cli
from orchestrator.cli import TerminalCommand, count_up_to, identifier, show_progress
from pipelines import replay
from pipelines.graph import StepState
from pipelines.models import StepRun
from tenants.audit import record_command
from tenants.context import APP, tenant_scope
from tenants.management.base import owner_of

MOST_PER_SECOND = 1_000


class Command(TerminalCommand):
    help = (
        "Replay failed work: one activity, all failures of a kind, or a pipeline run from one of its steps."
    )
    examples = (
        "replay failures --tenant acme",
        "replay failures --tenant acme --fingerprint 5d41402abc4b2a76 --dry-run",
        "replay failures --tenant acme --agent-role qa --per-second 5",
        "replay activity 0198a5c2-7d3e-7c41-9c0a-6f2b1d4e8a90",
        "replay run 0198a5c2-7d3e-7c41-9c0a-6f2b1d4e8a90 --from-step brief --dry-run",
    )

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="activity|failures|run")
        activity = verbs.add_parser("activity", help="one activity that has finally failed")
        activity.add_argument("id", type=identifier, metavar="ACTIVITY")
        failures = verbs.add_parser(
            "failures", help="all failures of a kind; without a condition, list what can be replayed"
        )
        failures.add_argument("--fingerprint", help="only failures with this fingerprint, from the list")
        failures.add_argument("--agent-role", metavar="ROLE")
        failures.add_argument("--all", action="store_true", help="every open failure")
        failures.add_argument(
            "--per-second",
            type=count_up_to(MOST_PER_SECOND),
            metavar="N",
            help="start at most this many per second",
        )
        run = verbs.add_parser("run", help="a pipeline run that has ended, as a new run of the same version")
        run.add_argument("id", type=identifier, metavar="RUN")
        run.add_argument(
            "--from-step", required=True, metavar="STEP", help="repeat this step and all steps after it"
        )
        for verb in (activity, failures, run):
            verb.add_argument("--dry-run", action="store_true", help="only print what would be done")
            super().add_arguments(verb)

    def query(self, *, verb: str, **options: Any) -> dict[str, Any]:
        return {"verb": verb, **getattr(self, f"_{verb}")(**options)}

    def _activity(self, *, id: UUID, tenant: str | None, dry_run: bool, **options: Any) -> dict[str, Any]:
        owner = cli.tenant_of_activity(tenant, id)
        done = failures(
            owner.pk, {"activity_id": id}, about=("activities", id), dry_run=dry_run, stream=self.stderr
        )
        if not done["count"]:
            raise CommandError(f"Activity {id} has no open failure. See: manage.py why {id}")
        return {"tenant": owner.slug, "dry_run": dry_run, **done}

    def _failures(
        self, *, tenant: str | None, dry_run: bool, per_second: int | None, **options: Any
    ) -> dict[str, Any]:
        owner = owner_of(tenant)
        filters = {name: options[name] for name in ("fingerprint", "agent_role") if options[name]}
        if not filters and not options["all"]:
            return {"tenant": owner.slug, "groups": groups(owner.pk)}
        about = ("dead_letters", options["fingerprint"] or "")
        done = failures(
            owner.pk, filters, about=about, dry_run=dry_run, per_second=per_second, stream=self.stderr
        )
        if options["fingerprint"] and not done["count"] + done["skipped"]:
            raise CommandError("No open failure has this fingerprint. See: manage.py replay failures")
        return {"tenant": owner.slug, "dry_run": dry_run, **done}

    def _run(
        self, *, id: UUID, from_step: str, tenant: str | None, dry_run: bool, **options: Any
    ) -> dict[str, Any]:
        owner = cli.tenant_of_run(tenant, id)
        done = run(owner.pk, id, from_step=from_step, dry_run=dry_run)
        return {"tenant": owner.slug, "dry_run": dry_run, **done}

    def render(self, result: dict[str, Any]) -> None:
        verb = "would start" if result.get("dry_run") else "started"
        if "groups" in result:
            head = ("fingerprint", "role", "reason", "open", "last", "example")
            self.write_table(head, [tuple(group[name] for name in COLUMNS) for group in result["groups"]])
            if result["groups"]:
                self.stdout.write(
                    "\nreplay some with --fingerprint or --agent-role, or everything with --all; --dry-run shows what would happen"
                )
        elif result["verb"] == "run":
            self.write_facts(
                ("run", result["run"] or f"{verb} a new one"),
                (verb, ", ".join(result["anew"])),
                ("kept", ", ".join(result["kept"])),
            )
        else:
            last = f", the last one after {result['seconds']:g} s" if result["seconds"] else ""
            self.stdout.write(f"{verb} {result['count']}, skipped {result['skipped']}{last}")


# The replays, by the functions of the API: failures in portions with a progress bar, runs also as a dry run.


ACTOR = "command:replay"
PORTION = 200  # failures per transaction; a command that is interrupted has replayed whole portions
MOST_GROUPS = 100
COLUMNS = ("fingerprint", "agent_role", "reason", "open", "last_at", "example")


def groups(tenant_id: UUID) -> list[dict[str, Any]]:
    """Return the groups of open failures, most frequent first, with the message of the newest one as an example."""
    with tenant_scope(tenant_id):
        letters = DeadLetter.objects.for_tenant(tenant_id)
        rows = list(
            dead_letters.groups(letters)
            .filter(open__gt=0)
            .order_by("-open", "fingerprint", "reason")[:MOST_GROUPS]
        )
        newest = letters.in_bulk([UUID(group.example) for group in rows])
    return [
        {
            **{name: getattr(group, name) for name in COLUMNS},
            "example": str(newest[UUID(group.example)].error.get("message", "")),
        }
        for group in rows
    ]


def failures(
    tenant_id: UUID,
    filters: Mapping[str, Any],
    *,
    about: tuple[str, object],
    dry_run: bool,
    per_second: int | None = None,
    stream: Any,
) -> dict[str, Any]:
    """Replay the matching open failures. With a rate they are one transaction, because the start times follow from each other.

    Each portion has its entry in the audit trail, so that an interrupted command has recorded all that it did.
    """
    with tenant_scope(tenant_id):
        letters = DeadLetter.objects.for_tenant(tenant_id).filter(state=DeadLetterState.OPEN, **filters)
        ids = list(letters.order_by("pk").values_list("pk", flat=True))
    size = PORTION if per_second is None and not dry_run else max(1, len(ids))
    portions = [ids[start : start + size] for start in range(0, len(ids), size)]
    count, seconds = 0, 0.0
    for portion in show_progress(portions, "replayed", stream):
        with tenant_scope(tenant_id):
            chosen = DeadLetter.objects.for_tenant(tenant_id).filter(pk__in=portion)
            done = dead_letters.replay(tenant_id, chosen, actor=ACTOR, per_second=per_second, dry_run=dry_run)
            if done.count and not dry_run:
                record_command("replay", tenant_id=tenant_id, about=about, detail={"count": done.count})
        count, seconds = count + done.count, max(seconds, done.seconds)
    return {"count": count, "skipped": len(ids) - count, "seconds": seconds}


def run(tenant_id: UUID, run_id: UUID, *, from_step: str, dry_run: bool) -> dict[str, Any]:
    """Replay an ended run. A dry run does the same and rolls it back, so the result is what would really happen."""
    with tenant_scope(tenant_id):
        new = replay.replay(tenant_id, run_id, from_step=from_step, actor=ACTOR)
        record_command("replay", tenant_id=tenant_id, about=("pipeline_runs", run_id), detail={"count": 1})
        rows = list(
            StepRun.objects.for_tenant(tenant_id).filter(run_id=new.pk, branch=0).order_by("position")
        )
        if dry_run:
            transaction.set_rollback(True, using=APP)
    repeated = [row.step for row in rows if row.status in (StepState.PENDING, StepState.ACTIVE)]
    return {
        "run": None if dry_run else new.pk,
        "anew": repeated,
        "kept": [row.step for row in rows if row.step not in repeated],
    }
