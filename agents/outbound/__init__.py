"""The only HTTP client of the project. It calls only public addresses and those that operators have allowed."""

from agents.outbound.budget import call_budget, too_large
from agents.outbound.client import (
    OutboundResponse,
    check_url,
    client_for_vendor,
    close_connections,
    get_guarded_transport,
    plain_errors,
    send,
)
from agents.outbound.policy import DATA_SOURCES, NOTIFICATIONS, WEBHOOKS
from agents.outbound.urls import read as read_url
