"""A lane's data path: bytes, decoder, core, kernels, frames back."""
