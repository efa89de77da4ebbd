"""Registries: small records that the workers of a job read, change and watch together."""
