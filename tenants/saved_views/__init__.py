"""Saved views: what people look at again and again, by a name. Each is a query of a page and belongs to one person, or to the tenant."""
