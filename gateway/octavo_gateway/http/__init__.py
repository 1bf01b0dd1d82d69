"""HTTP itself: limits of connections and bodies, ids and logs of requests, origins, server-sent events. No dialect."""
