"""`reducer demo`: a real model trained by four DDP workers over two reducers, and over gloo."""
