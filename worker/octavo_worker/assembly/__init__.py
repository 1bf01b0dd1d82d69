"""From options to running processes: settings, loading, devices, the engine's process and its ranks. The only room that
knows both engine and model; no other one imports it."""
