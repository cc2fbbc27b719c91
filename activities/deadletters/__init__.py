"""Dead letters: people are told of work that failed for good, once, and set it going again or give it up, one by one or all alike.

The failure itself is recorded with a dead letter by `burial`. What follows from it is done here, apart from the failure: whoever dies
half-way has done nothing, and everything may be done twice.
"""

from activities.deadletters.dismissing import Dismissed, cancel_item, dismiss
from activities.deadletters.handling import handle_waiting, unhandled, unhandled_since
from activities.deadletters.replaying import Replayed, replay, retry_item
from activities.deadletters.sorting import groups, open_letters

__all__ = (
    "Dismissed",
    "Replayed",
    "cancel_item",
    "dismiss",
    "groups",
    "handle_waiting",
    "open_letters",
    "replay",
    "retry_item",
    "unhandled",
    "unhandled_since",
)
