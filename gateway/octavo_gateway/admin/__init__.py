"""OpenAI's administration API, for operators: a tenant is a project."""
