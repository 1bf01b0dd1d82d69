"""Services beside the queue: the embedded server, children and their log, batches of lines, Celery. Nothing here
decides what a job means, and none of it is needed to submit one."""
