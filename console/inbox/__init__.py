"""The inbox: what people are asked to decide, one list and one page for each item, with undo, snooze and diff."""
