"""Overview of the queue and of what became of a job, as people and metrics see it. Nothing here changes anything."""
