"""Who is on a lane: sessions, runs that form, the members of runs, and how runs end."""
