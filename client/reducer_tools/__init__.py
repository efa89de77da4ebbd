"""Programs on top of the daemon and the client. Neither of the two imports this package."""
