"""The queue: names of keys, Lua scripts, their calls, the wire, connections, and what can be read of jobs and workers.
No state changes outside a script, and nothing here knows HTTP, a client's bookkeeping or a model's text."""
