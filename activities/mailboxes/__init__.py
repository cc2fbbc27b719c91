"""Mailboxes: messages to a session, delivered in order and once, to an agent or to external consumers.

A mailbox is consumed in one of two ways. If it names an agent's role, each pending item is a wake of an activity of that role, which
continues the mailbox's conversation; one run receives all wakes that are pending together. Otherwise external consumers take batches under
a lease.
"""
