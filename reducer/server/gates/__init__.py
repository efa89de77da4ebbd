"""How a stranger becomes a worker: the proofs of the modes psk and TLS, before any frame."""
