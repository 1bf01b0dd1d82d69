"""Recurrent layers between their two products: convolution, gates, recurrence and gated norm, one operation a layer.

A sequence's tokens are computed one after another in float32, with one order of sums: where its tokens are cut into
steps shows in no bit, neither in outputs nor in states.
"""
