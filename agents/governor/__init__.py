"""The governor limits how fast, and how many at once, all workers together call a model provider.

A provider limits requests and tokens per minute and tokens per day, reports in its answers what remains, and answers 429 above a limit.
Sometimes it fails. One state in Redis for each provider and credential records all of this. Every call uses it:

    acquire   Before the call: grant it and reserve its highest possible cost, or return how long to wait and why.
    report    After the call: return what was reserved and not used, and learn from the answer's headers.

**Windows.** Requests, input tokens and output tokens of the last minute and all tokens of the last day are counted exactly, so that no
period of a minute exceeds the limit. That is right for providers that count by the clock, and for those that refill a bucket. A call needs
room in all windows. When a provider reports less remaining than is known here, somebody else uses the same credential, and the
difference counts until its reset. The known amount is the content of the window when the reporting call began, with what had just left it
and all that was taken since: a provider counts a call when it arrives but reports on it when it ends, and that delay is not use by others.
While less than `low_share` of a limit remains, only urgent calls begin. A limit that is not configured is learned from the headers of
answers; its last `low_share` is reserved for urgent calls, so that a provider that reports its limit is never exhausted.

**Slots.** There are 2 at first. A successful call adds one, up to the profile's maximum. A 429 halves them, once for all calls that were
running at that time, but to no fewer than one.

**Retry-After** stops every call to that provider until then.

**Breaker.** A number of faults in a row (never a 429) opens it. After the cooldown exactly one call goes through as a probe. If it succeeds
the breaker closes, otherwise it stays open for another cooldown.

**Crashes.** Each call holds a lease that ends after the call must have ended. The slot of a dead process is freed when its lease ends, so
the provider never gets more concurrent calls than there are slots. Its reservation stays spent. A wiped Redis learns the state again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from agents.governor import keys
from agents.governor.limits import DIMENSIONS, Profile, ReportedLimits
from tenants import redis as connections
from tenants.limiter import answer_expected
from tenants.redis import Script

PARTS = 100  # of a window; usage leaves the window a part at a time, so at most a hundredth of a limit stays unused
MINUTE_SECONDS, DAY_SECONDS = 60.0, 86_400.0
# After a 429 without a retry time; doubled by each further one in a row, up to 64 s.
DEFAULT_PAUSE_SECONDS = 1.0
LEASE_MARGIN_SECONDS = 5.0  # after a call's deadline, to report its end


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
    """How a call ended. `other` is the caller's own error or cancellation, and says nothing about the provider."""

    OK = "ok"
    LIMITED = "limited"
    FAULT = "fault"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Call:
    """One call to make. The numbers of tokens are upper bounds; after `deadline_seconds` the call has certainly ended."""

    id: str
    deadline_seconds: float
    input_tokens: int = 0
    output_tokens: int = 0
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a call may begin, and if not, why and after how many seconds to try again."""

    granted: bool
    reason: Reason
    wait_seconds: float


@dataclass(frozen=True, slots=True)
class ProviderStatus:
    under_way: int
    slots: int
    used: Mapping[str, int]
    limits: Mapping[str, int | None]
    breaker: str  # closed, open, or half_open while a probe is due or running
    breaker_seconds: float
    # Since the cooldown of an open breaker ended; 0 before that, and while the breaker is closed.
    idle_seconds: float
    retry_seconds: float
    faults_in_a_row: int
    counts: Mapping[str, int]  # calls by outcome, and how often the breaker opened


@dataclass(frozen=True, slots=True)
class Governor:
    """One provider under one credential. All processes that use the same name share its state.

    Tests set `minute_seconds` and `day_seconds` to shorten the windows.
    """

    provider: str
    profile: Profile
    minute_seconds: float = MINUTE_SECONDS
    day_seconds: float = DAY_SECONDS

    def acquire(self, call: Call) -> Answer:
        """Grant the call if it may begin. Raises `LimiterUnavailable` when Redis does not answer; then the call must not be made."""
        profile = self.profile
        lease = int((call.deadline_seconds + LEASE_MARGIN_SECONDS) * 1000)
        granted, reason, wait = self._run(
            ACQUIRE, call.id, int(call.urgent), lease, *_cost(call.input_tokens, call.output_tokens),
            *profile.limits, *self._windows, profile.first_slots, profile.most_slots, profile.breaker_faults,
            int(profile.breaker_seconds * 1000), profile.low_share, PARTS,
        )  # fmt: skip
        return Answer(bool(granted), Reason(reason.decode()), wait / 1000)

    def report(
        self,
        call: Call,
        outcome: Outcome,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        learned: ReportedLimits | None = None,
    ) -> bool:
        """Record how a call ended, with the tokens that it used if they are known. Return False when it was reported before, or its lease
        has ended; then nothing changes.

        A call that was refused has used no tokens, whatever the arguments say.
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
            REPORT, call.id, outcome.value, _milliseconds(limits.retry_after), *used, *profile.limits, *self._windows,
            *(limits.left.get(name, -1) for name in DIMENSIONS), *(_milliseconds(limits.reset_seconds.get(name)) for name in DIMENSIONS),
            profile.first_slots, profile.most_slots, profile.breaker_faults, int(profile.breaker_seconds * 1000),
            int(DEFAULT_PAUSE_SECONDS * 1000), PARTS, *(limits.limits.get(name, -1) for name in DIMENSIONS),
        )  # fmt: skip
        return bool(answer)

    def status(self) -> ProviderStatus:
        """Return the current state of the provider. Changes nothing. Raises `LimiterUnavailable`."""
        now_ms, under_way, pairs, used, limits = self._run(
            STATUS, *self._windows, PARTS, *self.profile.limits
        )
        state = {name.decode(): value.decode() for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
        now = float(now_ms)
        faults = int(state.get("faults", 0))
        open_for = max(0.0, float(state.get("open_until", 0)) - now) / 1000
        over_for = max(0.0, now - float(state.get("open_until", now))) / 1000
        half_open = faults >= self.profile.breaker_faults
        return ProviderStatus(
            under_way=under_way,
            slots=int(float(state.get("slots", self.profile.first_slots))),
            used={name: int(amount) for name, amount in zip(DIMENSIONS, used, strict=True)},
            limits={name: int(limit) or None for name, limit in zip(DIMENSIONS, limits, strict=True)},
            breaker="open" if open_for else "half_open" if half_open else "closed",
            breaker_seconds=open_for,
            idle_seconds=over_for,
            retry_seconds=max(0.0, float(state.get("retry_at", 0)) - now) / 1000,
            faults_in_a_row=faults,
            counts={
                name.removeprefix("count_"): int(value)
                for name, value in state.items()
                if name.startswith("count_")
            },
        )

    @property
    def _windows(self) -> tuple[int, ...]:
        minute, day = int(self.minute_seconds * 1000), int(self.day_seconds * 1000)
        return (minute, minute, minute, day)

    def _run(self, script: Any, *arguments: str | int | float) -> Any:
        with answer_expected():
            return script.run(connections.client(), keys.of_provider(self.provider), arguments)


def _cost(input_tokens: int, output_tokens: int) -> Sequence[int]:
    return (1, input_tokens, output_tokens, input_tokens + output_tokens)


def _milliseconds(seconds: float | None) -> int:
    return -1 if seconds is None else max(0, int(seconds * 1000))


_FOLDER = Path(__file__).resolve().parent / "lua"

ACQUIRE, REPORT, STATUS = (Script.load(_FOLDER, name) for name in ("acquire", "report", "status"))
