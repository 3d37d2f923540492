"""Rare classes: what weights and priors find of them."""
