"""Bulk: one thing done to many activities, found once by a filter, in portions, by whichever worker has time.

Each item's state changes in the transaction of its effect, so a job that is killed half-way goes on where it was, and nothing happens to
an activity twice. Others may do what they like with the activities meanwhile: what is no longer in a state for it is skipped.
"""

from activities.bulk.jobs import CountChanged, TooMany, cancel, refuse_unknown, start
from activities.bulk.working import waiting, work

__all__ = ("CountChanged", "TooMany", "cancel", "refuse_unknown", "start", "waiting", "work")
