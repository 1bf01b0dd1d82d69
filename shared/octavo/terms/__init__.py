"""The nouns of octavo: requests, events, results, errors, and the structs that workers write. Nothing here connects to
a server, and nothing imports another room."""
