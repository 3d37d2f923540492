"""One private run: plan, step, trainer, and the parts for a loop of your own."""
