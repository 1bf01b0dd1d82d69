"""OpenAI's completions API as job requests and answers, the same for the gateway and for batch files.

Not imported by `octavo` itself: the client starts without it.
"""
