"""The shape of the source: what a reader has to hold."""
