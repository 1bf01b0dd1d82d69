"""The read side of the Durable Streams protocol: a job's log at a URL, from any offset."""
