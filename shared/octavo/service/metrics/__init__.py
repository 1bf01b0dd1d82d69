"""Metrics of `octavo.terms.metrics` as Prometheus' library has them, and the port that serves them. Decides no name."""
