"""Endpoints of webhooks and deliveries to them: their keys, their transitions, and how they are read."""
