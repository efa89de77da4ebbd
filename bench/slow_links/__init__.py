"""What training over slow links costs in accuracy, and saves in bytes."""
