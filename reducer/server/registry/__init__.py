"""The file of the registry, and the thread that writes it."""
