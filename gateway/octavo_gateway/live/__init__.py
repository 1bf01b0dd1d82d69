"""The fleet as it changes: one reader for all viewers, its figures once, its differences as they come. Nothing is read
while there is no viewer."""
