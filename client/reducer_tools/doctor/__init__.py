"""What `reducer doctor` does: look from this host at every reducer, as a worker would, and at the
host itself; name what is wrong and what to do."""
