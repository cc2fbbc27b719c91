"""Digests: once a day or a week a channel of mail is told what waits for people, what was done, what failed and what was spent.

A digest is an alert of its own kind with one delivery, so it is sent as alerts are: claimed once, repeated while that is safe. Composing is
one transaction that moves the channel's next time on by compare-and-set: of two composers one does it, and whoever dies has done nothing.
"""

from activities.digests.composing import due, send_due
from activities.digests.periods import plan

__all__ = ("due", "plan", "send_due")
