"""Steps as messages to other ranks, and tokens from logits that lie on several of them."""
