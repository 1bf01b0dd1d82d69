"""The layers of the decoder: each owns its weights and its arithmetic."""
