"""How people are told outside of the application: alerts by mail, Slack and webhook, and digests."""
