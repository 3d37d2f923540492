"""Texts through the one pipeline, against logistic regression without privacy on the same rows."""
