"""Mailboxes: what is said to a session, in order, each thing once, to an agent or to whoever takes it.

A mailbox is consumed in one of two ways. If it names an agent's role, a pending item is a wake of one activity of that role, which
continues the mailbox's conversation; what wakes it together is told together. Otherwise consumers outside take batches under a lease.

posting      something is said
delivering   to an agent, as wakes; and what its activity's end means for what it was told
taking       to a consumer, in batches under a lease
ending       what became of a batch
deciding     people's decisions are told
reading      how mailboxes and their items stand
"""

from activities.mailboxes.deciding import tell_decision
from activities.mailboxes.delivering import follow
from activities.mailboxes.ending import completed, expired, extended, failed, give_back_all
from activities.mailboxes.posting import NewItem, opened, post
from activities.mailboxes.taking import Taken, take

__all__ = (
    "NewItem",
    "Taken",
    "completed",
    "expired",
    "extended",
    "failed",
    "follow",
    "give_back_all",
    "opened",
    "post",
    "take",
    "tell_decision",
)
