"""`/v1/files` and `/v1/batches`. Bytes go to the storage and nowhere else; the clerk does the work of batches."""
