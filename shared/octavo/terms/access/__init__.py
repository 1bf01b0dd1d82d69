"""Proofs of identity: the secret of a service, API keys and read tokens as values. Nothing here reaches a server."""
