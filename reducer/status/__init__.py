"""What `reducer status` does: ask running reducers, put the answers together, show them."""
