"""The governor: how fast, and how many at once, a model provider may be called by all workers together.

A provider limits requests and tokens per minute and tokens per day, tells in its answers what is left, says 429 when it has had enough,
and now and then is broken. One state per provider and credential in Redis knows all of this, and every call asks it first:

    ask    May this call begin? Yes, or how long to wait and why. What it will cost at most is reserved.
    tell   How it ended. What was reserved and not used goes back; what the answer's headers say is learned.

**Windows.** Requests, input tokens and output tokens of the last minute and all tokens of the last day are counted exactly, so that no
minute, wherever it begins, holds more than the limit: right for providers that count by the clock, and for those that refill a bucket. A
call needs room in all of them. When a provider reports less left than is known here, somebody else uses the same credential, and the
difference counts until its reset. What was known is what was in the window when the reporting call began, with what had only just left it
and all that was taken since: a provider counts a call when it arrives and tells of it when it is over, and that delay is nobody's use.
While less than a tenth of a limit is left, only urgent calls begin. A limit that nobody has configured is learned from what answers tell
of it; its last tenth is left to urgent calls, so that a provider that says what is left is never drained.

**Slots.** Begin with 2. A call that goes well adds one, up to the profile's most; a 429 halves them, once for all calls that were under
way at that moment; never fewer than one.

**Retry-After** stops every call to that provider until then.

**Breaker.** A number of faults in a row (never a 429) opens it. After the cooldown exactly one call goes through as a probe: if it goes
well the breaker closes, otherwise it stays open for another cooldown.

Each call holds a lease. Of a process that died, the slot comes back when the lease ends, which is after its call must have ended, so the
provider never sees more calls at once than there are slots. What it reserved stays spent. A wiped Redis forgets, and learns again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import redis

from agents.governor import keys
from agents.governor.limits import DIMENSIONS, Profile, ReportedLimits
from tenants import redis as connections
from tenants.exceptions import LimiterUnavailable
from tenants.redis import Script

PARTS = 100  # of a window; what was used leaves it a part at a time, so at most a hundredth of a limit goes unused
MINUTE_SECONDS, DAY_SECONDS = 60.0, 86_400.0
UNTOLD_PAUSE_SECONDS = (
    1.0  # after a 429 that does not say when to come back; doubled by each further one in a row, up to 64 s
)
LEASE_MARGIN_SECONDS = 5.0  # beyond a call's own deadline, for its end to be told


class Reason(StrEnum):
    """Why a call may not begin yet."""

    GRANTED = "granted"
    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    DAY_TOKENS = "day_tokens"
    SLOTS = "slots"
    RETRY_AFTER = "retry_after"
    BREAKER = "breaker"


class Outcome(StrEnum):
    """How a call ended. `other` is the caller's own mistake or change of mind and says nothing about the provider."""

    OK = "ok"
    LIMITED = "limited"
    FAULT = "fault"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Call:
    """One call that is to be made. Tokens are the most that it may use; `deadline_seconds` is when it has surely ended."""

    id: str
    deadline_seconds: float
    input_tokens: int = 0
    output_tokens: int = 0
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a call may begin, and if not, why and after how many seconds to ask again."""

    granted: bool
    reason: Reason
    wait_seconds: float


@dataclass(frozen=True, slots=True)
class Standing:
    """How a provider stands at this moment."""

    under_way: int
    slots: int
    used: Mapping[str, int]
    limits: Mapping[str, int | None]
    breaker: str  # closed, open, or half_open while a probe is due or under way
    breaker_seconds: float
    idle_seconds: (
        float  # since the cooldown of an open breaker was over; 0 before, and for one that is closed
    )
    retry_seconds: float
    faults_in_a_row: int
    counts: Mapping[str, int]  # calls by outcome, and how often the breaker opened


@dataclass(frozen=True, slots=True)
class Governor:
    """One provider under one credential. All processes that name it alike share its state.

    `minute_seconds` and `day_seconds` exist so that tests need not wait for real ones.
    """

    provider: str
    profile: Profile
    minute_seconds: float = MINUTE_SECONDS
    day_seconds: float = DAY_SECONDS

    def ask(self, call: Call) -> Answer:
        """Begin the call if it may. Raises `LimiterUnavailable` when Redis does not answer: then nobody knows, and nobody calls."""
        profile = self.profile
        lease = int((call.deadline_seconds + LEASE_MARGIN_SECONDS) * 1000)
        granted, reason, wait = self._run(
            ASK, call.id, int(call.urgent), lease, *_cost(call.input_tokens, call.output_tokens),
            *profile.limits, *self._windows, profile.first_slots, profile.most_slots, profile.breaker_faults,
            int(profile.breaker_seconds * 1000), profile.low_share, PARTS,
        )  # fmt: skip
        return Answer(bool(granted), Reason(reason.decode()), wait / 1000)

    def tell(
        self,
        call: Call,
        outcome: Outcome,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        learned: ReportedLimits | None = None,
    ) -> bool:
        """Note how a call ended, with what it used where that is known. Counts once; False when it was told before or its lease is over.

        A call that was refused has used no tokens, whatever is given here.
        """
        limits, profile = learned or ReportedLimits(), self.profile
        if outcome is Outcome.LIMITED:
            input_tokens = output_tokens = 0
        used = (
            (-1, -1, -1, -1)
            if input_tokens is None or output_tokens is None
            else _cost(input_tokens, output_tokens)
        )
        answer = self._run(
            TELL, call.id, outcome.value, _milliseconds(limits.retry_after), *used, *profile.limits, *self._windows,
            *(limits.left.get(name, -1) for name in DIMENSIONS), *(_milliseconds(limits.reset_seconds.get(name)) for name in DIMENSIONS),
            profile.first_slots, profile.most_slots, profile.breaker_faults, int(profile.breaker_seconds * 1000),
            int(UNTOLD_PAUSE_SECONDS * 1000), PARTS, *(limits.limits.get(name, -1) for name in DIMENSIONS),
        )  # fmt: skip
        return bool(answer)

    def look(self) -> Standing:
        """The present state of the provider. Changes nothing. Raises `LimiterUnavailable`."""
        now, under_way, pairs, used, limits = self._run(LOOK, *self._windows, PARTS, *self.profile.limits)
        found = {name.decode(): value.decode() for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
        moment = float(now)
        faults, open_for = (
            int(found.get("faults", 0)),
            max(0.0, float(found.get("open_until", 0)) - moment) / 1000,
        )
        over_for = max(0.0, moment - float(found.get("open_until", moment))) / 1000
        half_open = faults >= self.profile.breaker_faults
        return Standing(
            under_way=under_way,
            slots=int(float(found.get("slots", self.profile.first_slots))),
            used={name: int(amount) for name, amount in zip(DIMENSIONS, used, strict=True)},
            limits={name: int(limit) or None for name, limit in zip(DIMENSIONS, limits, strict=True)},
            breaker="open" if open_for else "half_open" if half_open else "closed",
            breaker_seconds=open_for,
            idle_seconds=over_for,
            retry_seconds=max(0.0, float(found.get("retry_at", 0)) - moment) / 1000,
            faults_in_a_row=faults,
            counts={
                name.removeprefix("count_"): int(value)
                for name, value in found.items()
                if name.startswith("count_")
            },
        )

    @property
    def _windows(self) -> tuple[int, ...]:
        minute, day = int(self.minute_seconds * 1000), int(self.day_seconds * 1000)
        return (minute, minute, minute, day)

    def _run(self, script: Any, *arguments: str | int | float) -> Any:
        with _answer_expected():
            return script.run(connections.client(), keys.of(self.provider), arguments)


def _cost(input_tokens: int, output_tokens: int) -> Sequence[int]:
    """By dimension."""
    return (1, input_tokens, output_tokens, input_tokens + output_tokens)


def _milliseconds(seconds: float | None) -> int:
    return -1 if seconds is None else max(0, int(seconds * 1000))


@contextmanager
def _answer_expected() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise LimiterUnavailable(f"Redis did not answer: {type(error).__name__}") from error


# The governor's Lua scripts, one per verb.


_FOLDER = Path(__file__).resolve().parent / "lua"

ASK, TELL, LOOK = (Script.load(_FOLDER, name) for name in ("ask", "tell", "look"))
