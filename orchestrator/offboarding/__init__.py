"""Leaving: what a tenant takes along (export), and how everything of it is deleted (off-boarding).

Both go by PostgreSQL's catalogue, so that no table can be forgotten: whatever has a column `tenant_id` is a tenant's.
"""
