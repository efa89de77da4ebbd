"""Tables: named parameters that live on the reducers, with the state of their optimizer."""
