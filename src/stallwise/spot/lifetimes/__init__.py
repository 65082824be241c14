"""How long spot machines live: logs read, survival estimated with censoring, published tables."""
