"""Linear heads on public features: accuracy beside the non-private figure, and speed beside the bare products."""
