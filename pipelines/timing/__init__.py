"""Computes when a schedule fires, for the preview, the API and the firing alike.

Pure. `read` turns the keys of a schedule into a `Timing` or reports every error; `times` yields the nominal
times of a timing in order; `find_missed` selects the missed times that are still to be fired; `jitter` moves a
nominal time by an amount that every process computes alike.

**Cron.** Five fields by the rules of crontab(5): lists, ranges, steps, names, 7 as a second Sunday, and @hourly to
@yearly. When neither day field begins with a star, a day matches if either field matches, otherwise if both match.
Beyond crontab: `L` and `LW` as day of the month (its last day, its last weekday), `5L` and `1#2` as day of the
week (its last Friday, its second Monday). Fields of seconds or years are refused.

**Clocks that change.** What a cron means on the days when clocks change depends on its field of hours:

    names hours       It follows local time, and the schedule's two policies apply.
                      Local times that do not exist (gap): `shift` fires once, at the moment of the change,
                      when the clock shows the first valid time, however many times are missing; `skip`
                      does not fire. Local times that occur twice (fold): `first`, `second` or `both`.
    holds every hour  It follows elapsed time: it fires whenever the clock shows a matching minute. A repeated
                      hour counts like any other, and nothing replaces an hour that does not exist.

**Intervals** count elapsed time from `start_at`, which is their first time, regardless of clock changes.
Without a `start_at` they count from the beginning of 1970 in UTC. They are multiples, so they do not drift.

**Bounds.** A nominal time may equal `start_at` or `end_at`. For a cron, `start_at` is only a bound. Nothing fires
after the year 2199.
"""

from pipelines.timing.nominal import (
    DEFAULT_TIMEZONE,
    INSTANT,
    CatchUp,
    DstFold,
    DstGap,
    MissedTimes,
    Repeat,
    Timing,
    find_missed,
    jitter,
    latest,
    times,
)
from pipelines.timing.parsing import TimingError, errors, in_words, read
