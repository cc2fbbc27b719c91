"""Alerts: what people must be told, inside the application at once and outside of it as soon as it can be sent.

`raise_alert` writes the notice and one delivery per channel in the transaction of what happened, so neither is ever without the
other. Deliverers carry them out later, from a queue, with no transaction open.
"""

from activities.alerts.raising import raise_alert

__all__ = ("raise_alert",)
