"""Tenants in the queue: projects, accounts, keys, limits and usage as values and calls. No HTTP."""
