"""Saved views: what somebody looks at again and again, by a name, found below the heading of its page."""
