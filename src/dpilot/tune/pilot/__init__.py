"""The autopilot: options and data-free defaults, the plan of everything, its run, and the record of it."""
