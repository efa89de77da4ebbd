"""The state of a run's streams, keys, rounds and chunks."""
