"""Signals of this app for the apps above it.

They are sent with `send` inside the transaction, so a receiver that fails rolls the change back. Receivers may only use the database.
"""

from django.dispatch import Signal

#: A tenant was created, renamed, activated or deactivated. Carries `tenant`.
tenant_changed = Signal()

#: A pause has ended, or a tenant is active again. Carries `tenant_id`, and `kind` and `subject` of the paused part; `kind` is None for the
#: whole tenant.
work_resumed = Signal()

#: Work was paused or resumed. Sent in addition to `work_resumed`.
pauses_changed = Signal()

#: A channel has stopped working, which it did until now. Carries `channel`, a row of Channel.
channel_expired = Signal()

#: A channel will expire soon. Carries `channel`. Sent repeatedly until it expires, so a receiver warns only once, and returns whether it
#: has warned now.
channel_expiring = Signal()
