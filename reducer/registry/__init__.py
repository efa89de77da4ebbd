"""The records of the registry, for the daemon and for the client's registry in one process."""
