"""How people and programs outside are told: alerts by mail, Slack and webhook, digests, and events to the webhooks of tenants."""
