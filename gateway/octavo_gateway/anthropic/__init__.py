"""Anthropic's Messages API, so that its clients work unchanged."""
