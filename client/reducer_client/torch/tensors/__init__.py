"""Tensors as arrays for a group: packing, host memory, copies from CUDA, sparse tensors."""
