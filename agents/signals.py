"""Signals of the registry for the apps above.

They are sent with `send` inside the transaction, so a receiver that fails rolls back the change. Receivers touch only the database.
"""

from django.dispatch import Signal

#: An agent became unhealthy, or healthy again after that. Carries `agent`, the current row of Agent. Receivers run with the database role
#: `system`, which sees all tenants.
health_changed = Signal()

#: Scheduling was switched on again for the whole platform.
scheduling_resumed = Signal()
