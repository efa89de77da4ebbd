"""Collectives in progress: their keys, order, works, futures and callbacks."""
