"""What torch.distributed calls: the process group, its collectives, how its group forms."""
