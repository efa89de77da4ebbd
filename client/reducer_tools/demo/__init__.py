"""`reducer demo`: trains a small model with DDP workers over reducers, then over gloo."""
