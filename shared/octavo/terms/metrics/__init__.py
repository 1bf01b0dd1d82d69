"""Table of all metrics: names, kinds, labels, units, help, panels and alerts, as values.

The registries of gateway, clerk and worker, the tables of docs/metrics.md, the dashboard and the alert rules are made
of it. Nothing here measures, and nothing knows Prometheus' library.
"""
