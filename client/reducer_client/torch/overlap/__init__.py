"""Training whose next forward pass begins before all gradients of the last step have arrived."""
