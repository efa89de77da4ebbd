"""The process group that torch.distributed calls: its collectives, and how its ranks join."""
