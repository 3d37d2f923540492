"""Where users already are: thin and optional; each needs its package, and adds no guarantee of its own."""
