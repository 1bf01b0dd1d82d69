"""Webhook endpoints of tenants. A clerk delivers."""
