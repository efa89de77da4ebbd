"""The open Reduction Server: gradients summed between machines."""

__version__ = "0.1.0"
