"""From logits to tokens: adjustments, filters, noise, log-probabilities. Where logits come from is not known here."""
