"""Conditions: what is not as it should be on the platform is told once when it begins, and once when it is over.

Each is a row for as long as it lasts. The row and the alerts about it are one transaction, so that of several leaders that see the same
thing one tells of it, and a leader that is killed in between leaves neither. What cannot be asked at the moment stays as it is.
"""

from activities.conditions.lookout import Lookout

__all__ = ("Lookout",)
