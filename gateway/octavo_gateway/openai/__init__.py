"""The part of OpenAI's API that generation needs, so that every client of it works unchanged."""
