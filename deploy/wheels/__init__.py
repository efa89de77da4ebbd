"""Builds the wheels of a release and its sdist (docs/releasing.md)."""
