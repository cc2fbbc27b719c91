"""When a schedule fires: one rule, from which the preview, the API and the firing take their times.

Pure. `read` turns the keys of a schedule into a `Timing` or names every error; `times` yields the nominal
times of a timing in order, always the same ones; `find_missed` says which of those that nobody fired are still to
be fired; `jitter` moves a nominal time by an amount that everybody computes alike.

**Cron.** Five fields by the rules of crontab(5): lists, ranges, steps, names, 7 as a second Sunday, and @hourly to
@yearly. When neither day field begins with a star, a day matches if either of them does, otherwise if both do.
Beyond crontab: `L` and `LW` as day of the month (its last day, its last weekday), `5L` and `1#2` as day of the
week (its last Friday, its second Monday). Fields of seconds or years are refused.

**Clocks that change.** What a cron means on the days when clocks change depends on its field of hours:

    names hours       It is about the clock on the wall, and the schedule's two policies apply.
                      Wall times that are left out (gap): `shift` fires once, at the moment of the change,
                      when the clock shows the first valid time, however many of them are left out; `skip`
                      does not fire. Wall times that come twice (fold): `first`, `second` or `both`.
    holds every hour  It is about elapsed time: it fires whenever the clock shows a matching minute. A repeated
                      hour is an hour like any other, and nothing is made up for an hour that never was.

**Intervals** count elapsed time from `start_at`, which is their first time, whatever clocks do in between.
Without a `start_at` they count from the beginning of 1970 in UTC. They are multiples, so nothing drifts.

**Bounds.** `start_at` and `end_at` both belong to the schedule: a nominal time may fall on either of them. For a cron
`start_at` is only a bound. Nothing fires after the year 2199.
"""

from pipelines.timing.nominal import times
from pipelines.timing.parsing import in_words

from .nominal import (
    DEFAULT_TIMEZONE,
    CatchUp,
    DstFold,
    DstGap,
    MissedTimes,
    Repeat,
    Timing,
    find_missed,
    jitter,
)
from .parsing import TimingError, errors, read

__all__ = (
    "DEFAULT_TIMEZONE",
    "CatchUp",
    "DstFold",
    "DstGap",
    "MissedTimes",
    "Repeat",
    "Timing",
    "TimingError",
    "errors",
    "find_missed",
    "in_words",
    "jitter",
    "read",
    "times",
)
