"""Activities: found by a query, looked at one by one, and dealt with many at a time."""
