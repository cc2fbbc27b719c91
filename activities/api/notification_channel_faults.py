"""Why a notification channel is not made, changed or tried."""

from __future__ import annotations

from activities.exceptions import ActivityError


class NotificationChannelNameTaken(ActivityError):
    """Another channel of the tenant has this name."""

    code = "already_exists"


class NotificationChannelOff(ActivityError):
    """The channel is switched off, so nothing is sent there."""

    code = "notification_channel_off"


class TooManyNotificationChannels(ActivityError):
    """Every alert goes to each of them, so there may be only so many."""

    code = "too_many_notification_channels"


class TargetUnreadable(ActivityError):
    """The key that sealed the target is gone. A new target can be put."""

    code = "target_unreadable"


class NotWebhook(ActivityError):
    """Only webhooks are signed."""

    code = "not_a_webhook"
