"""Reading the chains again: an entry that was changed, taken out or put in does not fit between its neighbours.

The hashes are computed here, not by the database that is being checked. A chain whose end was cut off is whole in itself; that is
noticed by comparing with a checkpoint that was kept elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, transaction

from tenants.audit.purging import PURGED
from tenants.context import SYSTEM

PLATFORM = UUID(int=0)
NOTHING = "0" * 64
CONTENT = (Path(__file__).resolve().parent.parent / "sql" / "audit" / "content.sql").read_text(
    encoding="utf-8"
)
MOST_FAULTS = 20  # of one chain; more say nothing new


class _Row(NamedTuple):
    chain: UUID
    number: int
    previous_hash: str
    hash: str
    content: str
    purge: dict[str, Any] | None


@dataclass(slots=True)
class Chain:
    """What was found in one chain. `number` and `hash` of its last entry are the checkpoint to keep."""

    id: UUID
    entries: int = 0
    number: int = 0
    hash: str = NOTHING
    faults: list[str] = field(default_factory=list)
    hashes: dict[int, str] = field(default_factory=dict)  # of the numbers that a checkpoint names

    def add(self, fault: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(fault)


def verify(
    chain: UUID | None = None, checkpoints: Mapping[UUID, tuple[int, str]] | None = None
) -> list[Chain]:
    """Every chain, or one, against itself and against what was noted earlier as its end."""
    kept = checkpoints or {}
    found: dict[UUID, Chain] = {}
    for row in _entries(chain):
        _follow(found.setdefault(row.chain, Chain(row.chain)), row, kept.get(row.chain, (0, ""))[0])
    for of, (number, expected) in kept.items():
        if chain is None or chain == of:
            _compare(found.setdefault(of, Chain(of)), number, expected)
    return list(found.values())


def _follow(chain: Chain, row: _Row, noted: int) -> None:
    computed = hashlib.sha256((row.previous_hash + row.content).encode()).hexdigest()
    if computed != row.hash:
        chain.add(f"entry {row.number} was changed: its hash does not fit what it says")
    if chain.entries == 0:
        _begin(chain, row)
    elif row.number != chain.number + 1:
        chain.add(f"entries {chain.number + 1} to {row.number - 1} are missing")
    elif row.previous_hash != chain.hash:
        chain.add(
            f"entry {row.number} does not follow entry {chain.number}: one of them was changed, or put in"
        )
    if row.purge and row.purge.get("last_hash") == chain.hashes.get(0):
        said = _missing(int(row.purge.get("up_to", 0)))
        chain.faults = [fault for fault in chain.faults if fault != said]
    chain.entries, chain.number, chain.hash = chain.entries + 1, row.number, row.hash
    if row.number == noted:
        chain.hashes[row.number] = row.hash


def _begin(chain: Chain, row: _Row) -> None:
    if row.number != 1:
        chain.add(_missing(row.number - 1))  # unless a later entry says that they were purged
        chain.hashes[0] = row.previous_hash
    elif row.previous_hash != NOTHING:
        chain.add("entry 1 does not begin the chain")


def _missing(up_to: int) -> str:
    return f"entries 1 to {up_to} are missing"


def _compare(chain: Chain, number: int, expected: str) -> None:
    if number > chain.number:
        chain.add(f"the end is missing: there was an entry {number} when the checkpoint was taken")
    elif number in chain.hashes and chain.hashes[number] != expected:
        chain.add(f"entry {number} is another than when the checkpoint was taken")


def _entries(chain: UUID | None) -> Iterator[_Row]:
    """All entries in order, streamed: there may be millions."""
    which = "" if chain is None else "WHERE entry.chain = %s"
    with transaction.atomic(using=SYSTEM), connections[SYSTEM].cursor() as cursor:
        columns = f"entry.chain, entry.number, entry.previous_hash, entry.hash, {CONTENT}"
        purge = f"CASE entry.operation WHEN '{PURGED}' THEN entry.detail::text END"
        select = f"SELECT {columns}, {purge} FROM tenants_auditentry entry {which} ORDER BY entry.chain, entry.number"  # noqa: S608
        cursor.execute(
            f"DECLARE audit_entries NO SCROLL CURSOR FOR {select}", [] if chain is None else [chain]
        )
        while rows := _next(cursor):
            yield from rows


def _next(cursor: Any) -> list[_Row]:
    cursor.execute("FETCH 2000 FROM audit_entries")
    return [_Row._make((*row[:5], json.loads(row[5]) if row[5] else None)) for row in cursor.fetchall()]
