"""Pictures in class folders through the one pipeline, against the same pictures as arrays in memory."""
