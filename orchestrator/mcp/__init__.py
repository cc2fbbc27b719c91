"""The MCP server: what agents and people may ask of the HTTP API, as tools of the Model Context Protocol.

It is a client of the API and of nothing else: it knows no database, no settings and no Django. Who may do what, quotas, the audit trail
and the borders between tenants are therefore those of the API, under the caller's token.
"""
