"""Random requests, generated from the OpenAPI schema and sent to the server in this process."""
