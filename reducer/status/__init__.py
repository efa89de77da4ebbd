"""The work of `reducer status`: ask running reducers, combine the answers, show them."""
