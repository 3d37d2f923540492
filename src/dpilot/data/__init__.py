"""Data as it is declared, loaded and split."""
