"""What a tenant's admins arrange through the API: which parts there are, what a list shows of each, and what can be done to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from console.settings import actions
from console.settings.actions import Arranged


@dataclass(frozen=True, slots=True)
class Action:
    """Something that is done to one of them, by a POST to its address and `path`. `ask` is what the person must confirm."""

    name: str
    label: str
    done: str
    tone: str = "quiet"
    ask: str = ""


@dataclass(frozen=True, slots=True)
class Collection:
    """One part. `columns` are heads with members of what the API shows; the first of them leads to the page of one."""

    words: str
    one: str
    about: str
    columns: tuple[tuple[str, str], ...]
    new: type[Arranged]
    changed: type[Arranged]
    actions: tuple[Action, ...] = ()
    removal: str = ""
    has_log: bool = False


#: By the name of the collection in the API's addresses.
COLLECTIONS: Mapping[str, Collection] = {
    "budgets": Collection(
        "Budgets", "budget",
        "How much runs may consume. In force within two seconds; what a new one's period has seen already counts.",
        (("Name", "name"), ("Role", "agent_role"), ("Unit", "unit"), ("Period", "period"), ("Cap", "cap"), ("Spent", "spent"),
         ("Kept", "reserved")),
        actions.NewBudget, actions.ChangedBudget,
        removal="It counts no more, and what waits for it goes on. The ledger keeps what was spent.",
    ),
    "channels": Collection(
        "Channels", "channel", "Connections to the outside that agents rely on, and whether they still open anything.",
        (("Name", "name"), ("Kind", "kind"), ("Status", "status"), ("Expires", "expires_at")),
        actions.ChannelForm, actions.ChannelForm,
        (Action("expire", "Has expired", "Said to have expired", ask="Raise an alert that it opens nothing any more?"),
         Action("disable", "Switch off", "Switched off"), Action("reactivate", "Works again", "Works again", "good")),
        removal="Agents are not told of it any more.",
    ),
    "notification-channels": Collection(
        "Notifications", "notification channel", "Where people are told of alerts. A target goes in and is not shown again.",
        (("Name", "name"), ("Kind", "kind"), ("Target", "target"), ("Alerts", "kinds"), ("On", "enabled")),
        actions.NewNotification, actions.ChangedNotification,
        (Action("test", "Send a test", "A test is on its way"),
         Action("renew-secret", "New secret", "It has a new secret", ask="Messages are signed with both until the next renewal.")),
        removal="What is still on its way there is not sent any more.",
    ),
    "webhooks": Collection(
        "Webhooks", "webhook", "Where events are sent. A secret is shown once, when it is made.",
        (("Address", "url"), ("Description", "description"), ("Events", "kinds"), ("On", "enabled"), ("Switched off because", "off_reason"),
         ("Failing since", "failing_since")),
        actions.WebhookForm, actions.WebhookForm,
        (Action("test", "Send a test", "A test is on its way"),
         Action("rotate", "New secret", "It has a new secret", ask="The one before signs as well for 24 hours.")),
        removal="What is still on its way there is not sent any more, and its log goes with it.",
        has_log=True,
    ),
}  # fmt: skip


# The parts of a tenant's settings, in their order.


@dataclass(frozen=True, slots=True)
class Tab:
    """One part. `key` is empty for those with an address of their own, `name` is that address's."""

    words: str
    name: str
    key: str
    is_here: bool


def tabs(here: str) -> list[Tab]:
    """All parts. `here` is the one that is looked at."""
    own = [
        Tab("Members", "settings", "", here == "members"),
        Tab("Tokens", "settings_tokens", "", here == "tokens"),
    ]
    return own + [
        Tab(each.words, "settings_collection", key, here == key) for key, each in COLLECTIONS.items()
    ]
