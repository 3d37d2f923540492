"""Tables with interactions: grids beside additive models, networks and boosting."""
