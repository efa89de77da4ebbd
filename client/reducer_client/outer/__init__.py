"""Local steps with an outer optimizer (DiLoCo): what PyTorch and Keras share, without any I/O."""
