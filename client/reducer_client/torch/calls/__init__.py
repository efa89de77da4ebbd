"""A collective under way: its name, its order, its work, its future, its callbacks."""
