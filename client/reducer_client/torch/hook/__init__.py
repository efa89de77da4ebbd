"""DDP's communication hooks: all-reduce of buckets, 16-bit types, top-k."""
