"""The UI message stream protocol of the AI SDK, as `useChat` speaks it: a chat whose answer survives its readers."""
