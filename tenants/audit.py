"""The audit trail: who did what to which object, when and from where. It is append-only, and chained so that manipulation is detected.

An entry is written in the transaction of the action that it records, so there is never one without the other. Adding an entry locks its
chain until the transaction ends. It should be the last statement of a transaction, so that others of the tenant wait only for the commit.

The beginning of a chain may be purged after the retention period, and a whole chain is deleted with its tenant. The remaining chain, or the
platform's chain, records what was deleted. An entry that was changed, removed or inserted does not match its neighbours:
`verify_chains` computes the hashes here, not in the database that is being checked. A chain whose end was cut off is consistent in itself;
only a comparison with a checkpoint that was stored elsewhere detects that. See docs/audit.md.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import orjson
from django.conf import settings
from django.db import connections, transaction
from django.http import HttpRequest

from tenants.context import APP, SYSTEM, long_statements, system_scope, tenant_scope
from tenants.identifiers import uuid7
from tenants.principals import Principal
from tenants.sql import Statement
from tenants.wording import describe_count

APPEND = Statement.load(Path(__file__).resolve().parent / "sql" / "audit", "append")


def record_command(
    command: str,
    *,
    tenant_id: UUID | None = None,
    about: tuple[str, object] = ("", ""),
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Record a management command that changed something, in the open transaction or in a new one."""
    with transaction.atomic(using=APP) if tenant_id is None else tenant_scope(tenant_id):
        record(
            f"manage.py {command}",
            actor=actor_of_command(command),
            tenant_id=tenant_id,
            about=about,
            detail=detail,
        )


def record_action(
    who: Principal,
    operation: str,
    *,
    about: tuple[str, object],
    changes: Mapping[str, Any] | None = None,
    detail: Mapping[str, Any] | None = None,
    outcome: str = "done",
) -> None:
    """Record an action of `who` in their tenant's chain, with their break-glass session if they use one. Otherwise like `record`."""
    glass: dict[UUID | None, UUID] = {who.tenant_id: who.break_glass_id} if who.break_glass_id else {}
    with through_glass(glass):
        record(
            operation, actor=actor_of(who), tenant_id=who.tenant_id, about=about, changes=changes, detail=detail,
            outcome=outcome,
        )  # fmt: skip


def record(
    operation: str,
    *,
    actor: Actor,
    tenant_id: UUID | None = None,
    about: tuple[str, object] = ("", ""),
    changes: Mapping[str, Any] | None = None,
    detail: Mapping[str, Any] | None = None,
    outcome: str = "done",
) -> None:
    """Add one entry. `about` is the kind and the id of the object. Without a tenant, it is added to the platform's chain.

    `changes` and `detail` must be results of `changes_between` or `redact`. A tenant's entry needs its open scope, or one that may write
    its rows.
    """
    source = _origin.get()
    APPEND.run(
        {
            "id": uuid7(),
            "tenant_id": tenant_id,
            "actor_kind": actor.kind[:16],
            "actor_id": one_line(actor.id, 100),
            "actor_name": one_line(actor.name),
            "operation": one_line(operation),
            "outcome": outcome,
            "object_kind": one_line(about[0], 100),
            "object_id": one_line(about[1]),
            "changes": orjson.dumps(changes or {}, default=str).decode(),
            "detail": orjson.dumps(detail or {}, default=str).decode(),
            "request_id": source.request_id,
            "ip": source.ip,
            "break_glass_id": source.glass_of(tenant_id),
        }
    )


# The actor of an entry: a kind, an id that nobody can choose, and a name for people.


@dataclass(frozen=True, slots=True)
class Actor:
    kind: str  # user, token, run, command or nobody
    id: str = ""
    name: str = ""

    @property
    def label(self) -> str:
        """The actor as other tables store it, such as `command:root`."""
        return f"{self.kind}:{self.name}"


NOBODY = Actor("nobody")


def actor_of(caller: Any) -> Actor:
    """Return the actor of a principal, a person who signed in, or any object with an attribute `actor`."""
    if isinstance(caller, Principal):
        kind, _, name = caller.actor.partition(":")
        return Actor(kind, str(caller.token_id or caller.user_id), name)
    if getattr(caller, "is_authenticated", False) and hasattr(caller, "get_username"):
        return Actor("user", str(caller.pk), caller.get_username())
    kind, _, identity = str(getattr(caller, "actor", "") or "nobody").partition(":")
    return Actor(kind, identity)


def actor_of_command(command: str) -> Actor:
    """Return the actor of a command in a shell, of whom only the account on the machine is known."""
    try:
        account = getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        account = "unknown"
    return Actor("command", command, account)


# The changes of an object, field by field, in the form in which the audit trail may store them.


Changes = dict[str, list[Any]]


def changes_between(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Changes:
    """Return `{field: [before, after]}` for the fields that differ. None means an object that does not exist.

    A field is listed even if its values, such as secrets or texts, may not be stored.
    """
    old, new = before or {}, after or {}
    differing = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return {
        one_line(name, 100): [redact(name, old.get(name)), redact(name, new.get(name))]
        for name in differing[:MOST_MEMBERS]
    }


# The origin of a request: its id, its address, and its break-glass sessions.


@dataclass(frozen=True, slots=True)
class Origin:
    request_id: str = ""
    ip: str = ""
    glass: Mapping[UUID | None, UUID] = field(default_factory=dict)  # by tenant; None for all of them

    def glass_of(self, tenant_id: UUID | None) -> UUID | None:
        """Return the break-glass session for the tenant, if any."""
        return self.glass.get(tenant_id, self.glass.get(None)) if self.glass else None


NOWHERE = Origin()
_origin: ContextVar[Origin] = ContextVar("audit_origin", default=NOWHERE)


def current_origin() -> Origin:
    """Return the origin that entries would name now."""
    return _origin.get()


@contextmanager
def from_origin(origin: Origin) -> Iterator[None]:
    """Name this origin in entries of the block."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


@contextmanager
def through_glass(glass: Mapping[Any, UUID]) -> Iterator[None]:
    """Name these break-glass sessions, by tenant, in entries of the block. None means all tenants."""
    with from_origin(replace(_origin.get(), glass=glass)):
        yield


def address_of(request: HttpRequest) -> str:
    """Return the caller's address: the peer's, or the one that the last of our own proxies saw. Claims of callers are ignored."""
    hops = settings.ORCHESTRATOR_PROXY_HOPS
    address = request.META.get("REMOTE_ADDR", "")
    if hops > 0:
        forwarded = [
            part.strip() for part in request.headers.get("X-Forwarded-For", "").split(",") if part.strip()
        ]
        address = forwarded[-hops] if len(forwarded) >= hops else address
    try:
        return str(ip_address(address))
    except ValueError:
        return ""  # a socket without addresses, or an invalid header


# The redaction of values: the audit trail contains neither secrets nor texts of agents and people.
#
# Entries outlive their objects and are read by many, so they record that a text changed and its length, but not the text.


SECRET = re.compile(
    r"secret|token|passw|auth|credential|api_?key|private|sealed|signature|cookie|session|target|recipient|webhook|url$|endpoint|headers",
    re.IGNORECASE,
)
#: Names that match `SECRET` but are not secrets, such as counts of tokens.
NO_SECRET = re.compile(
    r"(input|output|max|total)_tokens|author|token_id|target_type|session_id$", re.IGNORECASE
)
#: Fields with texts of or for agents and people: the whole name of a field, or its last word as in `cancel_reason`.
TEXTS = frozenset(
    """
    answer blocker_message blocker_resolution comment content data definition description details error feedback input
    instructions item items job message metadata note notes options output params payload progress prompt question
    reason resolution result reviewer_feedback reviewer_notes rows sample search summary text title wakes
    """.split()  # noqa: SIM905 - read as words
)
LONGEST = 200  # characters of a value that is stored unchanged
MOST_MEMBERS, DEEPEST = 40, 4
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def redact(name: str, value: Any, depth: int = 0) -> Any:
    """Return the value of a field of that name as JSON that may be stored."""
    if value is None or isinstance(value, bool):
        return value
    # Of a deliverable; other targets are addresses.
    is_planned_number = name == "target" and isinstance(value, int)
    if SECRET.search(name) and not NO_SECRET.fullmatch(name) and not is_planned_number:
        return "[secret]" if value != "" else ""
    if name in TEXTS or name.rpartition("_")[2] in TEXTS:
        return _measure(value)
    if isinstance(value, Mapping):
        if depth >= DEEPEST:
            return _measure(value)
        members = sorted(value.items(), key=lambda member: str(member[0]))[:MOST_MEMBERS]
        return {one_line(key, 100): redact(str(key), member, depth + 1) for key, member in members}
    if isinstance(value, list | tuple):
        if depth >= DEEPEST or len(value) > MOST_MEMBERS:
            return _measure(value)
        return [redact(name, member, depth + 1) for member in value]
    return _plain(value)


def one_line(value: Any, longest: int = LONGEST) -> str:
    """Return the text in one line, with escapes for control characters, so that it can neither begin a new line nor hide one."""
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", str(value))[:longest]


def _plain(value: Any) -> Any:
    if isinstance(value, int | float):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    text = str(value)
    if "://" in text:
        return "[address]"  # whatever the field's name, because many addresses contain secrets
    return one_line(text) if len(text) <= LONGEST else _measure(text)


def _measure(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"[{describe_count(len(value), 'member')}]"
    if isinstance(value, list | tuple):
        return f"[{describe_count(len(value), 'element')}]"
    return f"[{describe_count(len(str(value)), 'character')}]"


_CHAINS = Statement.load(Path(__file__).resolve().parent / "sql" / "audit", "chains")

PURGED, FORGOTTEN = "audit.purged", "audit.forgotten"


def purge_chain(chain: UUID, before: datetime, *, actor: Actor) -> int:
    """Delete the entries of a chain from before a time, but never its last one, in one transaction. Return how many."""
    with system_scope(), transaction.atomic(using=SYSTEM):
        with long_statements(SYSTEM), connections[SYSTEM].cursor() as cursor:
            cursor.execute("SELECT deleted, up_to, last_hash FROM audit_purge(%s, %s)", [chain, before])
            deleted, up_to, last_hash = cursor.fetchone()
        if deleted:
            detail = {
                "up_to": up_to,
                "last_hash": last_hash,
                "entries": deleted,
                "before": before.isoformat(),
            }
            record(
                PURGED,
                actor=actor,
                tenant_id=chain if chain.int else None,
                about=("audit", chain),
                detail=detail,
            )
    return int(deleted or 0)


def forget_chain(chain: UUID, slug: str, *, actor: Actor) -> int:
    """Delete the chain of a departed tenant, and record its end in the platform's chain, in one transaction. Return how many entries."""
    with system_scope(), transaction.atomic(using=SYSTEM):
        with long_statements(SYSTEM), connections[SYSTEM].cursor() as cursor:
            cursor.execute("SELECT deleted, up_to, last_hash FROM audit_forget(%s)", [chain])
            deleted, up_to, last_hash = cursor.fetchone()
        if deleted:
            detail = {"slug": slug, "up_to": up_to, "last_hash": last_hash, "entries": deleted}
            record(FORGOTTEN, actor=actor, tenant_id=None, about=("audit", chain), detail=detail)
    return int(deleted or 0)


def chains() -> list[UUID]:
    """Return all chains that have entries. The cost grows with the number of chains, not of entries."""
    return [row.chain for row in _CHAINS.run({}, using=SYSTEM)]


PLATFORM = UUID(int=0)
NOTHING = "0" * 64
CONTENT = (Path(__file__).resolve().parent / "sql" / "audit" / "content.sql").read_text(encoding="utf-8")
MAX_FAULTS = 20  # of one chain; more contain nothing new


class _Row(NamedTuple):
    chain: UUID
    number: int
    previous_hash: str
    hash: str
    content: str
    # Of an entry that records the deletion of others: of which chain, and up to which entry.
    deletion: dict[str, Any] | None


@dataclass(slots=True)
class Chain:
    """The result of verifying one chain. `number` and `hash` of its last entry are the checkpoint to store."""

    id: UUID
    entries: int = 0
    number: int = 0
    hash: str = NOTHING
    faults: list[str] = field(default_factory=list)
    hashes: dict[int, str] = field(default_factory=dict)  # of the number in the checkpoint

    def add(self, fault: str) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(fault)


def verify_chains(
    chain: UUID | None = None, checkpoints: Mapping[UUID, tuple[int, str]] | None = None
) -> list[Chain]:
    """Verify every chain, or one, in itself and against the checkpoints of its end."""
    ends = checkpoints or {}
    results: dict[UUID, Chain] = {}
    forgotten: dict[str, dict[str, Any]] = {}
    for row in _entries(chain):
        _verify_entry(results.setdefault(row.chain, Chain(row.chain)), row, ends.get(row.chain, (0, ""))[0])
        if row.deletion and row.deletion["operation"] == FORGOTTEN and row.chain == PLATFORM:
            forgotten[row.deletion["chain"]] = row.deletion
    for chain_id, (number, expected) in ends.items():
        if chain not in (None, chain_id) or _contained(forgotten.get(str(chain_id)), number, expected):
            continue
        _compare(results.setdefault(chain_id, Chain(chain_id)), number, expected)
    return list(results.values())


def _contained(forgotten: Mapping[str, Any] | None, number: int, expected: str) -> bool:
    """Whether the chain of a purged tenant contained this entry when it was deleted."""
    if forgotten is None or not isinstance(forgotten["up_to"], int):
        return False
    return number < forgotten["up_to"] or (number, expected) == (forgotten["up_to"], forgotten["last_hash"])


def _verify_entry(chain: Chain, row: _Row, checkpoint_number: int) -> None:
    computed = hashlib.sha256((row.previous_hash + row.content).encode()).hexdigest()
    if computed != row.hash:
        chain.add(f"entry {row.number} was changed: its hash does not match its content")
    if chain.entries == 0:
        _begin(chain, row)
    elif row.number != chain.number + 1:
        chain.add(f"entries {chain.number + 1} to {row.number - 1} are missing")
    elif row.previous_hash != chain.hash:
        chain.add(
            f"entry {row.number} does not follow entry {chain.number}: one of them was changed, or inserted"
        )
    if (
        row.deletion
        and row.deletion["operation"] == PURGED
        and row.deletion["last_hash"] == chain.hashes.get(0)
    ):
        problem = _missing(row.deletion["up_to"])
        chain.faults = [fault for fault in chain.faults if fault != problem]
    chain.entries, chain.number, chain.hash = chain.entries + 1, row.number, row.hash
    if row.number == checkpoint_number:
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
        chain.add(f"entry {number} is not the same as when the checkpoint was taken")


def _entries(chain: UUID | None) -> Iterator[_Row]:
    """Yield all entries in order. They are streamed, because there may be millions."""
    which = "" if chain is None else "WHERE entry.chain = %s"
    with transaction.atomic(using=SYSTEM), connections[SYSTEM].cursor() as cursor:
        columns = f"entry.chain, entry.number, entry.previous_hash, entry.hash, {CONTENT}"
        deletion = (
            f"CASE WHEN entry.operation IN ('{PURGED}', '{FORGOTTEN}') THEN jsonb_build_object('operation', entry.operation,"
            " 'chain', entry.object_id, 'up_to', entry.detail -> 'up_to', 'last_hash', entry.detail -> 'last_hash')::text END"
        )
        select = f"SELECT {columns}, {deletion} FROM tenants_auditentry entry {which} ORDER BY entry.chain, entry.number"  # noqa: S608
        cursor.execute(
            f"DECLARE audit_entries NO SCROLL CURSOR FOR {select}", [] if chain is None else [chain]
        )
        while rows := _next(cursor):
            yield from rows


def _next(cursor: Any) -> list[_Row]:
    cursor.execute("FETCH 2000 FROM audit_entries")
    return [_Row._make((*row[:5], json.loads(row[5]) if row[5] else None)) for row in cursor.fetchall()]
