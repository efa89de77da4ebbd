"""Tensors as the arrays that a group takes: packed, in host memory, copied from CUDA, sparse."""
