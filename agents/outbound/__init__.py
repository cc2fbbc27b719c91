"""The only HTTP client of the project. It calls public addresses and what the operators named, no others."""

from agents.outbound.budget import call_budget
from agents.outbound.client import OutboundResponse, check_url, close_connections, guarded_transport, send

__all__ = ["OutboundResponse", "call_budget", "check_url", "close_connections", "guarded_transport", "send"]
