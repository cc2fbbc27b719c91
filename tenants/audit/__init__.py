"""The audit trail: who did what to which object, when and from where; added to only, and chained so that changes show.

An entry is written in the transaction of what it tells of: there is never one without the other. See docs/audit.md.
"""

from tenants.audit.recording import record, record_action, record_command

from .recording import Actor, actor_of

__all__ = ("Actor", "actor_of", "record", "record_action", "record_command")
