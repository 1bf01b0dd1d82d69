"""Export of spans by OpenTelemetry's library, an extra: only where its usual variables ask for it is it imported."""
