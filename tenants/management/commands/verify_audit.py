"""`manage.py verify_audit [--tenant SLUG] [--checkpoint FILE]`: verifies that the audit trail is unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from tenants import registration
from tenants.audit import PLATFORM, verify_chains
from tenants.management.base import ManagementCommand
from tenants.wording import describe_count


class Command(ManagementCommand):
    help = (
        "Verify the chains of the audit trail. Exits with 1 when an entry was changed, removed or inserted. Prints the end of each "
        "chain: store it elsewhere, and pass it with --checkpoint later, to detect that the end of a chain was cut off."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--tenant", metavar="SLUG", help="only this tenant's chain; `-` is the platform's"
        )
        parser.add_argument(
            "--checkpoint", type=Path, metavar="FILE", help="an earlier output of this command with --json"
        )
        parser.add_argument(
            "--json", action="store_true", help="print the ends of the chains as JSON, for --checkpoint"
        )

    def handle(self, *args: Any, tenant: str | None, checkpoint: Path | None, **options: Any) -> None:
        chains = verify_chains(_chain(tenant), _read_checkpoint(checkpoint))
        faults = [f"{_name_chain(chain.id)}: {fault}" for chain in chains for fault in chain.faults]
        if options["json"]:
            self.stdout.write(
                json.dumps({str(chain.id): [chain.number, chain.hash] for chain in chains}, indent=2)
            )
        else:
            for chain in chains:
                self.stdout.write(
                    f"{_name_chain(chain.id)}: {describe_count(chain.entries, 'entry', 'entries')}, the last is {chain.number} {chain.hash}"
                )
        for fault in faults:
            self.stderr.write(fault)
        if faults:
            raise SystemExit(1)


def _chain(slug: str | None) -> UUID | None:
    if slug is None:
        return None
    return PLATFORM if slug == "-" else registration.find(slug).pk


def _read_checkpoint(path: Path | None) -> dict[UUID, tuple[int, str]]:
    if path is None:
        return {}
    try:
        return {
            UUID(chain): (int(number), str(digest))
            for chain, (number, digest) in json.loads(path.read_text()).items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CommandError(f"{path} is not a checkpoint: {error}") from error


def _name_chain(chain: UUID) -> str:
    return "platform" if chain == PLATFORM else str(chain)
