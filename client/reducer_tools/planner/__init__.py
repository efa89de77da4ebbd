"""Computes how many reducers pay off, with a model of times, bytes and prices. No I/O."""
