"""The MCP server: offers the HTTP API to agents and people as tools of the Model Context Protocol.

It is only a client of the API, without database, settings or Django. So permissions, quotas, the audit trail and the isolation of tenants
are those of the API, under the caller's token.
"""
