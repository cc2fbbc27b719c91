"""Run logs: stores the lines that agents log during their runs, in MongoDB.

A log is for people who watch a run, and must not disturb the work: it writes nothing to PostgreSQL, an agent inside a worker does not wait
for it, and no run fails because of it. Lines that could not be written are counted, and the log says so.

A batch of lines is one document. Its `_id` is the run and the number of its first line. Batches are only inserted after the last one, so
line numbers have no gaps, and a reader can continue after any number. The key of a batch is unique within its run, so a repeated batch
adds nothing. The last document of a full log counts the lines that came afterwards.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import redis
from django.conf import settings

from activities import keys, outputs
from activities.exceptions import KeyReused, OutputUnavailable
from activities.run_tokens import RunToken
from agents.contracts import LINE_KINDS, LogLine
from tenants import clock
from tenants import redis as connections
from tenants.events import announcements
from tenants.identifiers import uuid7
from tenants.lazy_import import lazy_import
from tenants.wording import describe_count

if TYPE_CHECKING:
    import pymongo
    from pymongo import errors as mongodb
    from pymongo.collection import Collection
else:
    pymongo, mongodb = lazy_import("pymongo"), lazy_import("pymongo.errors")

logger = logging.getLogger(__name__)

EVENT = "run_log"
TRIES = 20  # to insert the next batch while several writers add to the same log
WRITE_SECONDS = 2.0  # a whole write, because an agent waits for the response and a server may be frozen
AWAY_SECONDS = 5.0  # pause after a failure, in which this process does not try MongoDB again
MISSED_SECONDS = 86_400  # lifetime of the count of lines that could not be written
PATIENCE_SECONDS = 0.5  # timeout for Redis
MOST_RUNS = 10_000  # runs with waiting lines in one process

AWAY = "{count} were not kept: the store of logs did not answer."
FULL = "{count} were not kept: a run may log {lines} lines and {size} bytes."

#: Colours and other terminal commands, and unprintable characters.
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The result for a batch. `last` is the number of the log's last line, if it is known."""

    kept: int
    dropped: int
    last: int | None
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class NumberedLine:
    number: int
    kind: str
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Page:
    """Lines in order. `cursor` is the number to continue after, `dropped` the number of lines that a full log dropped."""

    lines: Sequence[NumberedLine]
    cursor: int
    dropped: int
    more: bool


# Writing


def record(run: RunToken, lines: Sequence[LogLine], *, key: str = "") -> AppendResult:
    """Add lines that an agent has reported. `key` distinguishes batches with equal lines. Raises `KeyReused`.

    Raises nothing if MongoDB is down: the lines are dropped, and the next batch that is stored begins with a note about them.
    """
    digest, now = _hash_bytes(orjson.dumps([[line.at, line.kind, line.text] for line in lines])), clock.now()
    batch = _Batch(f"key:{_hash_bytes(key)}" if key else f"lines:{digest}", digest, tuple(lines), now)
    if not _breaker.is_closed():
        return _drop_lines(run, len(lines))
    missed = _take_missed(run)
    if missed:
        batch = replace(batch, notes=(_dropped_note(missed, now),))
    try:
        result = _append(run, batch)
    except mongodb.PyMongoError as error:
        _breaker.trip(error)
        _add_missed(run, missed)
        return _drop_lines(run, len(lines))
    if missed and result.duplicate:
        _add_missed(run, missed)
    _announce(run, result)
    return result


@dataclass(frozen=True, slots=True)
class _Batch:
    key: str
    digest: str
    lines: tuple[LogLine, ...]
    at: datetime
    notes: tuple[LogLine, ...] = ()  # our own notes before the lines
    size: int = 0  # bytes in the buffer of waiting lines


def _append(run: RunToken, batch: _Batch) -> AppendResult:
    """Insert a batch after the last one. Raises `PyMongoError`, `KeyReused`."""
    documents = _documents()
    with pymongo.timeout(WRITE_SECONDS):
        # This index makes the key of a batch unique. It is created here, so that nobody has to set it up.
        if settings.MONGODB_URI not in _indexed:
            by_key = [("run_id", pymongo.ASCENDING), ("key", pymongo.ASCENDING)]
            documents.create_index(by_key, unique=True, name="batch_once")
            _indexed.add(settings.MONGODB_URI)
        for _ in range(TRIES):
            last = documents.find_one(_of_run(run.run_id), sort=[("_id", pymongo.DESCENDING)])
            if last is not None and last.get("full"):
                return _count_dropped(run, batch, last)
            document, result = _document(run, batch, last)
            try:
                documents.insert_one(document)
            except mongodb.DuplicateKeyError:
                if (same := documents.find_one({"run_id": str(run.run_id), "key": batch.key})) is not None:
                    return _result_of_duplicate(batch, same)
                continue
            return result
    raise mongodb.PyMongoError("too many writers add to the same log at once")


def _document(
    run: RunToken, batch: _Batch, last: dict[str, Any] | None
) -> tuple[dict[str, Any], AppendResult]:
    """Return the document with the lines that have room, and the result. If not all have room, it is the last document of the log."""
    number, size = (last["last"], last["bytes"]) if last else (0, 0)
    stored: list[LogLine] = []
    for line in (*batch.notes, *batch.lines):
        new_size = size + len(line.text.encode())
        if (
            number + len(stored) >= settings.ORCHESTRATOR_RUN_LOG_LINES
            or new_size > settings.ORCHESTRATOR_RUN_LOG_BYTES
        ):
            break
        stored.append(line)
        size = new_size
    kept = max(0, len(stored) - len(batch.notes))
    dropped = len(batch.lines) - kept
    document = {
        "_id": _document_id(run.run_id, number + 1),
        "tenant_id": str(run.tenant_id), "activity_id": str(run.activity_id), "run_id": str(run.run_id),
        "key": batch.key, "digest": batch.digest, "last": number + len(stored), "bytes": size,
        "kept": kept, "dropped": dropped, "full": dropped > 0, "dropped_key": "",
        "lines": [{"at": line.at or batch.at, "kind": line.kind, "text": line.text} for line in stored],
        "created_at": batch.at,
    }  # fmt: skip
    return document, AppendResult(kept, dropped, number + len(stored) + (dropped > 0))


def _count_dropped(run: RunToken, batch: _Batch, last: dict[str, Any]) -> AppendResult:
    """Count the lines that a full log drops. A duplicate is recognised only if no other batch came in between."""
    documents = _documents()
    if (same := documents.find_one({"run_id": str(run.run_id), "key": batch.key})) is not None:
        return _result_of_duplicate(batch, same)
    not_counted = {"_id": last["_id"], "dropped_key": {"$ne": batch.key}}
    update = documents.update_one(
        not_counted, {"$inc": {"dropped": len(batch.lines)}, "$set": {"dropped_key": batch.key}}
    )
    return AppendResult(0, len(batch.lines), last["last"] + 1, duplicate=not update.matched_count)


def _result_of_duplicate(batch: _Batch, same: dict[str, Any]) -> AppendResult:
    if same["digest"] != batch.digest:
        raise KeyReused("This Idempotency-Key was used for other lines of this run.")
    count = same["kept"]
    return AppendResult(count, len(batch.lines) - count, same["last"] + same["full"], duplicate=True)


def _announce(run: RunToken, result: AppendResult) -> None:
    if not result.duplicate and result.last is not None:
        announcements.announce(
            run.tenant_id, EVENT, run.activity_id, {"run": str(run.run_id), "last": result.last}
        )


def _drop_lines(run: RunToken, count: int) -> AppendResult:
    _add_missed(run, count)
    return AppendResult(0, count, None)


def _add_missed(run: RunToken, count: int) -> None:
    if not count:
        return
    name = keys.lines_missed(run.tenant_id, run.run_id)
    try:
        pipeline = _redis().pipeline(transaction=False)
        pipeline.incrby(name, count)
        pipeline.expire(name, MISSED_SECONDS)
        pipeline.execute()
    except redis.RedisError:
        return  # the log will not mention these lines


def _take_missed(run: RunToken) -> int:
    try:
        return int(_redis().getdel(keys.lines_missed(run.tenant_id, run.run_id)) or 0)
    except redis.RedisError:
        return 0


def _redis() -> redis.Redis:
    return connections.client(timeout_seconds=PATIENCE_SECONDS)


class _Breaker:
    """Pauses writes to MongoDB in this process for a while after a failure."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # by address

    def is_closed(self) -> bool:
        return time.monotonic() >= self._until.get(settings.MONGODB_URI, 0.0)

    def trip(self, error: mongodb.PyMongoError) -> None:
        self._until[settings.MONGODB_URI] = time.monotonic() + AWAY_SECONDS
        facts = {"action": "run_log_waits", "reason": type(error).__name__}
        logger.warning("Run logs cannot be written: MongoDB is down", extra=facts)


_breaker = _Breaker()


# Writing from inside a worker


@dataclass(slots=True)
class _Buffer:
    """The lines of one run in this process that are not written yet."""

    run: RunToken
    at: datetime  # of the last line
    lines: list[LogLine] = field(default_factory=list)
    missed: int = 0
    sent: _Batch | None = None  # being written; kept until MongoDB has confirmed it


class Writer:
    """Writes the lines of this process to MongoDB, in a thread of its own. While MongoDB is down, it buffers a limited number of lines."""

    def __init__(self) -> None:
        self._buffers: dict[UUID, _Buffer] = {}
        self._size = 0
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, run: RunToken, kind: str, text: str) -> None:
        """Buffer each line of the text. Does not block."""
        now = clock.now()
        lines = [LogLine(kind if kind in LINE_KINDS else "note", line, now) for line in _lines(text)]
        with self._changed:
            buffer = self._buffers.get(run.run_id)
            if buffer is None:
                if len(self._buffers) >= MOST_RUNS:
                    return
                buffer = self._buffers[run.run_id] = _Buffer(run, now)
            buffer.at = now
            for line in lines:
                size = _size(line)
                if self._size + size > settings.ORCHESTRATOR_RUN_LOG_BUFFER_BYTES:
                    buffer.missed += 1
                    continue
                self._size += size
                buffer.lines.append(line)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="run-logs", daemon=True)
                with suppress(RuntimeError):  # no thread can be started now: the next line tries again
                    thread.start()
                    self._thread = thread  # set last: a thread that could not be started would never write
            self._changed.notify()

    def flush(self) -> bool:
        """Write all buffered lines; returns False if MongoDB did not accept all of them."""
        with self._writing:
            with self._changed:
                runs = list(self._buffers)
            for run_id in runs:
                try:
                    while self._write(run_id):
                        pass
                except mongodb.PyMongoError as error:
                    _breaker.trip(error)
                    return False
                except Exception:
                    # Drop the batch, because it must not block the lines after it.
                    logger.exception("Lines of a run were dropped", extra={"action": "run_log_dropped"})
                    buffer = self._buffers[run_id]
                    if (batch := buffer.sent) is not None:
                        buffer.missed += len(batch.lines)
                        self._forget_sent(buffer, batch)
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._buffers:
                    self._changed.wait()
            time.sleep(settings.ORCHESTRATOR_RUN_LOG_SECONDS)  # collect more lines for the same batch
            if not self.flush():
                time.sleep(AWAY_SECONDS)

    def _write(self, run_id: UUID) -> bool:
        """Write one batch of the run; returns whether there was one. A failed batch is written again under the same key."""
        with self._changed:
            buffer = self._buffers[run_id]
            if buffer.sent is None:
                limit = settings.ORCHESTRATOR_RUN_LOG_CALL_LINES
                lines, buffer.lines = buffer.lines[:limit], buffer.lines[limit:]
                size = sum(map(_size, lines))
                if buffer.missed and not buffer.lines:
                    lines.append(_dropped_note(buffer.missed, buffer.at))
                    buffer.missed = 0
                if not lines:
                    del self._buffers[run_id]
                    return False
                buffer.sent = _Batch(f"worker:{uuid7()}", "", tuple(lines), buffer.at, size=size)
            batch = buffer.sent
        _announce(buffer.run, _append(buffer.run, batch))
        self._forget_sent(buffer, batch)
        return True

    def _forget_sent(self, buffer: _Buffer, batch: _Batch) -> None:
        with self._changed:
            buffer.sent = None
            self._size -= batch.size


def here() -> Writer:
    return _writer_of(os.getpid())


@cache
def _writer_of(pid: int) -> Writer:
    # One for each process id, because a fork does not inherit the thread.
    writer = Writer()
    atexit.register(writer.flush)
    return writer


def _lines(text: str) -> Iterator[str]:
    """Yield the printable lines of a text. A line that is too long is cut, with a note."""
    limit = settings.ORCHESTRATOR_RUN_LOG_LINE_BYTES
    for line in text.replace("\r\n", "\n").split("\n"):
        printable = plain(line)
        if len(raw := printable.encode()) > limit:
            part = raw[: limit - 64].decode(errors="ignore")
            printable = f"{part}… ({len(printable) - len(part)} more characters)"
        yield printable


def plain(line: str) -> str:
    """Remove colours and other terminal commands, and unprintable characters."""
    return _UNPRINTABLE.sub("", _TERMINAL.sub("", line))


def _dropped_note(count: int, at: datetime) -> LogLine:
    return LogLine("note", AWAY.format(count=describe_count(count, "line")), at)


def _size(line: LogLine) -> int:
    return len(line.text) * 4 + 100  # upper bound for the memory of a Python string


# Reading


def read(tenant_id: UUID, run_id: UUID, *, after: int = 0, limit: int = 500) -> Page:
    """Return the lines after a number. Raises `OutputUnavailable` if MongoDB does not answer. Do not call it inside a transaction."""
    try:
        with pymongo.timeout(outputs.READ_SECONDS):
            return _page(tenant_id, run_id, after, limit)
    except mongodb.PyMongoError as error:
        raise OutputUnavailable("The store of logs does not answer; try again in a moment.") from error


def tail(tenant_id: UUID, run_id: UUID, count: int) -> Page:
    """Return the last lines of a log. See `read`."""
    try:
        with pymongo.timeout(outputs.READ_SECONDS):
            selection = {**_of_run(run_id), "tenant_id": str(tenant_id)}
            last = _documents().find_one(selection, {"last": 1}, sort=[("_id", pymongo.DESCENDING)])
            return _page(tenant_id, run_id, max(0, (last["last"] if last else 0) - count), count + 1)
    except mongodb.PyMongoError as error:
        raise OutputUnavailable("The store of logs does not answer; try again in a moment.") from error


def _page(tenant_id: UUID, run_id: UUID, after: int, limit: int) -> Page:
    documents, selection = _documents(), {**_of_run(run_id), "tenant_id": str(tenant_id)}
    # The batch that contains the next line is the last one that begins at or before it.
    until = {"$gte": f"{run_id}:", "$lte": _document_id(run_id, after + 1)}
    first = documents.find_one({**selection, "_id": until}, {"_id": 1}, sort=[("_id", pymongo.DESCENDING)])
    if first is not None:
        selection["_id"] = {**selection["_id"], "$gte": first["_id"]}
    following: list[NumberedLine] = []
    dropped = 0
    for document in documents.find(selection).sort("_id", pymongo.ASCENDING):
        following += [line for line in _number_lines(document) if line.number > after]
        dropped = document["dropped"] if document["full"] else 0
        if len(following) > limit:
            break
    lines = following[:limit]
    return Page(lines, lines[-1].number if lines else after, dropped, more=len(following) > limit)


def _number_lines(document: dict[str, Any]) -> Iterator[NumberedLine]:
    first = document["last"] - len(document["lines"]) + 1
    for number, line in enumerate(document["lines"], first):
        yield NumberedLine(number, line["kind"], line["text"], _aware(line["at"]))
    if document["full"]:
        bounds = {
            "lines": f"{settings.ORCHESTRATOR_RUN_LOG_LINES:,}",
            "size": f"{settings.ORCHESTRATOR_RUN_LOG_BYTES:,}",
        }
        text = FULL.format(count=describe_count(document["dropped"], "line"), **bounds)
        yield NumberedLine(document["last"] + 1, "note", text, _aware(document["created_at"]))


def _aware(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)


# Storage


def forget(run_ids: Sequence[str], activity_ids: Sequence[str]) -> None:
    """Delete the logs of these runs, if they belong to these activities. Raises `PyMongoError`."""
    _documents().delete_many({"run_id": {"$in": list(run_ids)}, "activity_id": {"$in": list(activity_ids)}})


def every_document_of(tenant_id: UUID, *, at_once: int) -> Iterator[dict[str, Any]]:
    """Yield all documents of a tenant, for an export. Raises `PyMongoError`."""
    yield from _documents().find({"tenant_id": str(tenant_id)}, batch_size=at_once)


def _of_run(run_id: UUID) -> dict[str, Any]:
    return {"_id": {"$gte": f"{run_id}:", "$lt": f"{run_id};"}}


def _document_id(run_id: UUID, number: int) -> str:
    return f"{run_id}:{number:010}"


def _documents() -> Collection[dict[str, Any]]:
    # A log need not survive the loss of the primary, so writes do not wait for other members of the replica set.
    return (
        outputs.collection().database[outputs.RUN_LOGS].with_options(write_concern=pymongo.WriteConcern(w=1))
    )


_indexed: set[str] = set()


def _hash_bytes(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:32]
