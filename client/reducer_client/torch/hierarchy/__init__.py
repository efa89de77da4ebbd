"""All-reduce in two levels: among the ranks of each host, then among hosts on the reducers."""
