"""Private regression against the published tables, on real tables, and out of core."""
