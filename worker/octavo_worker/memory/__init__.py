"""Blocks, block tables, the prefix cache, pins and the cost model. It imports nothing, and knows neither requests nor
devices."""
