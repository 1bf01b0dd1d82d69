"""Routes of octavo's own jobs."""
