"""DDP's communication hooks: the mean of a bucket, 16-bit types, top-k."""
