"""How often the intervals of ``dpilot forecast`` hold: twelve tasks to judge it by, others to develop it on."""
