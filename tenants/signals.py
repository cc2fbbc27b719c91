"""What tenants tell the apps above.

Sent with `send` inside the transaction: a receiver that fails undoes what it was told about. Receivers touch only the database.
"""

from django.dispatch import Signal

#: A tenant was made, renamed, switched on or off. Carries `tenant`.
tenant_changed = Signal()

#: A channel opens nothing any more, and did until now. Carries `channel`, a row of Channel.
channel_expired = Signal()

#: A channel will expire soon. Carries `channel`; sent again and again until then, so a receiver that has said so says nothing more, and
#: returns whether it said something now.
channel_expiring = Signal()
