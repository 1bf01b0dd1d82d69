"""Public Celery task: `from octavo.celery import generate`. It is implemented in `octavo.service.celery`."""

from octavo.service.celery import GenerateTask, Watcher, WatchStep, generate, job_key

__all__ = ["GenerateTask", "WatchStep", "Watcher", "generate", "job_key"]
