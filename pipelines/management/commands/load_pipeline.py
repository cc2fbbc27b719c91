"""`manage.py load_pipeline FILE [--tenant SLUG]`: saves a pipeline file as a new version of its pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from pipelines import versions
from pipelines.definition import DefinitionError, load
from tenants import audit, registration
from tenants.context import system_scope
from tenants.exceptions import TenantError
from tenants.models import Tenant

ACTOR = "command:load_pipeline"


class Command(BaseCommand):
    help = "Save a pipeline from a YAML or JSON file as a new version. Running runs keep their version."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE", help="YAML, or JSON if its name ends in .json")
        parser.add_argument(
            "--tenant", metavar="SLUG", help="whose pipeline it is; may be left out if there is one tenant"
        )

    def handle(self, *args: Any, file: Path, tenant: str | None, **options: Any) -> None:
        text = read_text(file)
        owner = owner_of(tenant)
        try:
            version = versions.save(owner.pk, load(text, filename=file.name), actor=ACTOR)
        except DefinitionError as error:
            for problem in error.errors:
                self.stderr.write(str(problem))
            raise SystemExit(1) from error
        key = version.pipeline.key
        audit.record_command(
            "load_pipeline", tenant_id=owner.pk, about=("pipelines", key), detail={"version": version.number}
        )
        self.stdout.write(f"pipeline {key} version {version.number}")


def read_text(file: Path) -> str:
    """Read a text file. Raises `CommandError`."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{file} is not UTF-8 text (byte {error.start}).") from error


def owner_of(slug: str | None) -> Tenant:
    """Return the named tenant, or the only one. Raises `CommandError`."""
    if slug is not None:
        try:
            return registration.find(slug)
        except TenantError as error:
            raise CommandError(str(error)) from error
    with system_scope():
        tenants = list(Tenant.objects.order_by("slug")[:20])
    if len(tenants) != 1:
        known = (
            ", ".join(tenant.slug for tenant in tenants)
            or "none; create one with: manage.py create_tenant SLUG"
        )
        raise CommandError(f"Say whose it is with --tenant SLUG. There are: {known}")
    return tenants[0]
