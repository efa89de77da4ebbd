"""The way of device tensors to host memory and back, around a collective of host memory."""
