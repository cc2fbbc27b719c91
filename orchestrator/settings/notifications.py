"""The platform's own notification channels, and the mail server. All settings are optional."""

from __future__ import annotations

from orchestrator.settings.environment import Env, parse_url

_env = Env()

# The platform's own channels, which get the alerts of all tenants. Empty: only the channels of tenants are notified.
SLACK_WEBHOOK_URL = _env.web_address("SLACK_WEBHOOK_URL")
ALERT_EMAIL = _env("ALERT_EMAIL", default="")  # several addresses with commas

# Slack signs the calls of its buttons with it. Empty: messages have no buttons, and calls from Slack are refused.
SLACK_SIGNING_SECRET = _env("SLACK_SIGNING_SECRET", default="")

# Default hours, in the tenant's time zone, of daily digests and of weekly ones (on Mondays). The modulo keeps an invalid hour from stopping
# beat and workers.
DIGEST_CRON_HOUR = _env.int("DIGEST_CRON_HOUR", default=7) % 24
ORCHESTRATOR_WEEKLY_DIGEST_HOUR = _env.int("ORCHESTRATOR_WEEKLY_DIGEST_HOUR", default=9) % 24

# The mail server: smtp+tls://user:password@host:587. Empty: no email is sent, and deliveries by email fail with this reason.
EMAIL_URL = _env("EMAIL_URL", default="")
vars().update(
    parse_url(
        "EMAIL_URL", EMAIL_URL or "dummymail://", Env.email_url_config,
        schemes=Env.EMAIL_SCHEMES, example="smtp+tls://user:password@host:587",
    )
)  # fmt: skip
EMAIL_TIMEOUT = 10.0  # seconds without an answer from the mail server
DEFAULT_FROM_EMAIL = _env("DEFAULT_FROM_EMAIL", default="") or "orchestrator@localhost"
