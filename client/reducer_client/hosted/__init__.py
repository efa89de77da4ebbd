"""Hosted reducers: reducers on the machines of the workers, which the client starts itself."""
