"""Tenants in the queue: their limits, and the account of what they use."""
