"""`reducer top`: computes rates between two answers of the reducers and draws the screen."""
