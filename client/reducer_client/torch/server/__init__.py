"""Training with parameters that reducers keep and update."""
