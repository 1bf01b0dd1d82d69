"""Webhooks on their way out: which addresses they may reach, the request, the signed message, and the courier that
delivers what is due."""
