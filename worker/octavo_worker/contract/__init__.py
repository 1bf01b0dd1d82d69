"""What agent, engine and model share: messages and their channel, steps, options, capacity, files. Values and how they
travel; nothing here computes."""
