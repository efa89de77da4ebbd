"""How many reducers pay off: a model of times and bytes. No I/O in here."""
