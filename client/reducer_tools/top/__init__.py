"""What `reducer top` draws: rates between two answers of the reducers, and the screen."""
