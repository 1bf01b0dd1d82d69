"""Where the ranks of one model meet, over memory that they share: sums, gathers, and tokens from parts of rows. Nothing
here starts a process or knows a model."""
