"""All-reduce in two levels: among the ranks of a host, then among the hosts by the reducers."""
