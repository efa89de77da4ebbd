"""Limits of a job, a run and a rank on a lane, and the accounts of what each has taken."""
