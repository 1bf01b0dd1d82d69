"""EAGLE-3 heads: one layer that guesses from the states of the target.

How a draft comes about (EAGLE-3, arXiv 2503.01840):

1. While the target computes a step, `Features` takes what enters three of its layers, brings them to one row a token by
   the head's matrix `fc`, and keeps that row under the token's slot.
2. A row of the head joins the embedding of a token with the features of the token before it, and guesses the token
   after. Its keys and values lie in the slot of the features: in the target's block ids, as all else of a sequence.
3. For the second and further drafts there are no features yet. The head's own state takes their place, in the slot
   that the target fills with the true ones in the same step.

`EagleDrafts` is a `DraftModel` otherwise: what it misses it computes when a sequence wants drafts.
"""
