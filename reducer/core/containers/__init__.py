"""Containers for what a peer makes a lane remember: safe against the numbers that it chooses."""
