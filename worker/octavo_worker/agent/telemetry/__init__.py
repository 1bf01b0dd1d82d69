"""Figures of one worker for Prometheus, and the port that serves them. Nothing here is done a token or a step."""
