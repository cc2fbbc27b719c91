"""Pages of activities: search by a query, the details of one, and bulk actions."""
