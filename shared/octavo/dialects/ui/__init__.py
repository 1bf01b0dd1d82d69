"""UI messages of the AI SDK: bodies to job requests, events of a job to parts."""
