"""Requests that nobody would write, made from the OpenAPI schema and sent to the server in this process."""
