"""Authenticates connections by psk or TLS, and connects to lanes of other reducers."""
