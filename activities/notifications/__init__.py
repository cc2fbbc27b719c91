"""Notifications to people and external programs: alerts by email, Slack and webhook, digests, and events to webhooks of tenants."""
