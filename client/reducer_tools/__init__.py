"""Programs that use the daemon and the client together; neither of them imports this package."""
