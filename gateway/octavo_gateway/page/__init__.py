"""The page and the static files that it needs."""
