"""What the main process and a lane tell each other: options, orders, reports, numbers."""
