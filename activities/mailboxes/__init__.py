"""Mailboxes: what is said to a session, in order, each thing once, to an agent or to anyone who takes it.

A mailbox is consumed in one of two ways. If it names an agent's role, a pending item is a wake of one activity of that role, which
continues the mailbox's conversation; what wakes it together is told together. Otherwise consumers outside take batches under a lease.
"""
