"""What the loss of a worker costs a training: our `Elastic` beside torchft, with the same kills."""
