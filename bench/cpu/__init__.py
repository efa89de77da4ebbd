"""CPU time per GB of a lane and of a worker, beside the same bytes moved and added in plain C."""
