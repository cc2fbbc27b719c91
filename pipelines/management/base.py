"""Base of the commands that load a file for a tenant."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from pipelines.definition import DefinitionError, load
from tenants.management.base import ManagementCommand, owner_of
from tenants.models import Tenant


class LoadCommand(ManagementCommand):
    """Loads the object in a file. If something in it is invalid, every error is printed with its path."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE", help="YAML, or JSON if its name ends in .json")
        parser.add_argument(
            "--tenant", metavar="SLUG", help="whose it is; may be left out if there is one tenant"
        )

    def handle(self, *args: Any, file: Path, tenant: str | None, **options: Any) -> None:
        text = _read_text(file)
        owner = owner_of(tenant)
        try:
            self.load(owner, load(text, filename=file.name), file)
        except DefinitionError as error:
            for problem in error.errors:
                self.stderr.write(str(problem))
            raise SystemExit(1) from error

    @abstractmethod
    def load(self, owner: Tenant, data: dict[str, Any], file: Path) -> None:
        """Store the data for the tenant. Raises `DefinitionError`."""


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{file} is not UTF-8 text (byte {error.start}).") from error
