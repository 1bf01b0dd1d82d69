"""The administration dialect: `/v1/organization/...` as OpenAI's clients call it. A tenant is a project."""
