"""Messages between the main process and a lane: options, orders, reports, numbers."""
