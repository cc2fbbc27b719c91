"""Django's backend for PostgreSQL with connections that never wait for a silent server longer than a few seconds."""
