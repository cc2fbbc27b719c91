"""`manage.py load_pipeline FILE [--tenant SLUG]`: saves a pipeline file as a new version of its pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines import versions
from pipelines.management.base import LoadCommand
from tenants import audit
from tenants.models import Tenant

ACTOR = "command:load_pipeline"


class Command(LoadCommand):
    help = "Save a pipeline from a YAML or JSON file as a new version. Running runs keep their version."

    def load(self, owner: Tenant, data: dict[str, Any], file: Path) -> None:
        version = versions.save(owner.pk, data, actor=ACTOR)
        key = version.pipeline.key
        audit.record_command(
            "load_pipeline", tenant_id=owner.pk, about=("pipelines", key), detail={"version": version.number}
        )
        self.stdout.write(f"pipeline {key} version {version.number}")
