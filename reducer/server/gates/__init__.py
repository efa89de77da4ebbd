"""Authenticates connections by psk or TLS, before the first frame."""
