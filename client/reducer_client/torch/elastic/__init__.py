"""Training with PyTorch while workers come and go: `Elastic`."""
