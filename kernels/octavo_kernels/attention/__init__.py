"""Attention over the paged cache, and the plan that a step's layers share. No weight is multiplied here."""
