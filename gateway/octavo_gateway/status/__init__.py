"""State of the gateway and of its fleet: health, metrics, workers. No route here changes a job."""
