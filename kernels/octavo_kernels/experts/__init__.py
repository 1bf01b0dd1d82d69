"""Mixtures of experts: which of them a row takes, their products, and the weighted sum."""
