"""Tenants in the queue: their projects, service accounts and keys as values and calls. No HTTP."""
