"""Commands about tenants: their keys, limits and usage."""
