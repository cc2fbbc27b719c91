"""Subagents: an agent does one prompt for somebody else, in a conversation of its own, and its parent is told how it went.

Underneath it is an activity like any other, with the same admission, retries, budgets and cancellation.

starting   a new one, or a further task for one that there is
standing   how it stands, and what it took
ending     its parent's mailbox is told
"""

from activities.subagents.ending import tell_parent
from activities.subagents.standing import Standing, cancel, one, standing
from activities.subagents.starting import NewSubagent, start

__all__ = ("NewSubagent", "Standing", "cancel", "one", "standing", "start", "tell_parent")
