"""`reducer demo`: trains a small model over reducers and over gloo, on hosts with limited NICs."""
