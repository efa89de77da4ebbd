"""Containers for numbers that a peer chooses: no choice makes them slow."""
