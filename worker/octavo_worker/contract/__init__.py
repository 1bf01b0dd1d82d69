"""Values that agent, engine and model share: messages and their channel, steps, options, capacity, files. Nothing here
computes."""
