"""One run on a lane: contributions, credit, sums, results, positions, mismatches."""
