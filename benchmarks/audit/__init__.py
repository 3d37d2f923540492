"""What canaries prove in one run, and what they cost in accuracy."""
