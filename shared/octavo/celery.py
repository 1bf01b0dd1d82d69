"""Public Celery task: `from octavo.celery import generate`. It is implemented in `octavo.service.celery`."""

from octavo.service.celery import GenerateTask, Watcher, WatchStep, generate

__all__ = ["GenerateTask", "WatchStep", "Watcher", "generate"]
