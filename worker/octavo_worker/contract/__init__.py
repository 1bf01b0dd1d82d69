"""What engine and model share: values only, so that neither imports the other."""
