"""What the gateway and its fleet are doing: health, metrics, workers. No route here changes a job."""
