"""The worker processes, which serve all tenants: what each serves, how busy it is, and when it was last heard of."""
