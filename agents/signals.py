"""What the registry tells the apps above.

Sent with `send` inside the transaction: a receiver that fails undoes what it was told about. Receivers touch only the database.
"""

from django.dispatch import Signal

#: An agent became unhealthy, or healthy again after that. Carries `agent`, a row of Agent as it is now. The role `system` is at
#: work, which sees all tenants.
health_changed = Signal()
