"""The audit trail, for admins: sought by who, what and when, and as a file."""
