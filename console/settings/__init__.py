"""Settings of a tenant, for its admins: members, tokens, and what the API arranges."""
