"""The queue's side of a worker: claim, lease, text, publish. It never imports torch, nor the engine, which is a process
of its own."""
