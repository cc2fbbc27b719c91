"""Where alerts go that are everybody's business, and how mail leaves. All of it is optional."""

from __future__ import annotations

import environ

_env = environ.Env()

# The platform's own channels: they hear of the alerts of all tenants. Empty: nobody outside is told but the tenants themselves.
SLACK_WEBHOOK_URL = _env("SLACK_WEBHOOK_URL", default="")
ALERT_EMAIL = _env("ALERT_EMAIL", default="")  # several addresses with commas

# With it Slack signs what the buttons of its messages send. Empty: messages have no buttons, and nothing is taken from Slack.
SLACK_SIGNING_SECRET = _env("SLACK_SIGNING_SECRET", default="")

# At which hour of the tenant's own day digests leave, where a channel says nothing else: daily ones, and weekly ones (on Mondays). An hour
# that there is not would keep beat and workers from starting, so it is brought into the day.
DIGEST_CRON_HOUR = _env.int("DIGEST_CRON_HOUR", default=7) % 24
ORCHESTRATOR_WEEKLY_DIGEST_HOUR = _env.int("ORCHESTRATOR_WEEKLY_DIGEST_HOUR", default=9) % 24

# How mail leaves: smtp+tls://user:password@host:587. Empty: no mail is sent, and deliveries by mail fail saying so.
EMAIL_URL = _env("EMAIL_URL", default="")
vars().update(environ.Env.email_url_config(EMAIL_URL or "dummymail://"))
EMAIL_TIMEOUT = 10.0  # seconds without an answer from the mail server
DEFAULT_FROM_EMAIL = _env("DEFAULT_FROM_EMAIL", default="") or "orchestrator@localhost"
