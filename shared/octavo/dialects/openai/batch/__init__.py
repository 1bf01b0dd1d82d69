"""OpenAI's batches: the structure of a file, the content of its lines, their answers, and the objects of the API. Pure
functions; a file is never read or stored here."""
