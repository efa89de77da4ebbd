"""The round engine of a lane: events in, outputs out; no socket, clock, thread or random number."""
