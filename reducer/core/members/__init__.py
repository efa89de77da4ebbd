"""The workers of a lane: sessions, runs that form, the members of runs, and the end of runs."""
