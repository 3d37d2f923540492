"""The autopilot in pieces: terms, data-free steps, the plan of everything, the flight, and what it tells."""
