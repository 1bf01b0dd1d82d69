"""`octavo bench`: figures as JSON, a table for people."""
