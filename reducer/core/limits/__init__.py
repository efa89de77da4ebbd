"""What a job, a run and a rank may take of a lane, and what each of them has taken."""
