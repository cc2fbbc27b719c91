"""The governor: how fast, and how many at once, a model provider may be called by all workers together.

A provider limits requests and tokens per minute and tokens per day, tells in its answers what is left, says 429 when it has had enough, and
now and then is broken. One state per provider and credential in Redis knows all of this, and every call asks it first:

    ask    May this call begin? Yes, or how long to wait and why. What it will cost at most is reserved.
    tell   How it ended. What was reserved and not used goes back; what the answer's headers say is learned.

**Windows.** Requests, input tokens and output tokens of the last minute and all tokens of the last day are counted exactly, so that no
minute, wherever it begins, holds more than the limit: right for providers that count by the clock, and for those that refill a bucket.
A call needs room in all of them. When a provider reports less left than is known here, somebody else uses the same credential, and the
difference counts until its reset. What was known is what was in the window when the reporting call began, with what had only just left it
and all that was taken since: a provider counts a call when it arrives and tells of it when it is over, and that delay is nobody's use.
While less than a tenth of a limit is left, only urgent calls begin. A limit that nobody has configured is learned from what answers tell of
it; its last tenth is left to urgent calls, so that a provider that tells what is left is never drained.

**Slots.** Begin with 2. A call that goes well adds one, up to the profile's most; a 429 halves them, once for all calls that were under way
at that moment; never fewer than one.

**Retry-After** stops every call to that provider until then.

**Breaker.** A number of faults in a row (never a 429) opens it. After the cooldown exactly one call goes through as a probe: if it goes
well the breaker closes, otherwise it stays open for another cooldown.

Each call holds a lease. Of a process that died, the slot comes back when the lease ends, which is after its call must have ended, so the
provider never sees more calls at once than there are slots. What it reserved stays spent. A wiped Redis forgets, and learns anew.
"""

from agents.governor.governor import Answer, Call, Governor, Outcome, Reason, Standing
from agents.governor.headers import Learned, learned_from
from agents.governor.profiles import BUILD, FREE, SCALE, TIERS, Profile

__all__ = (
    "BUILD",
    "FREE",
    "SCALE",
    "TIERS",
    "Answer",
    "Call",
    "Governor",
    "Learned",
    "Outcome",
    "Profile",
    "Reason",
    "Standing",
    "learned_from",
)
