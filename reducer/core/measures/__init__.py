"""What a lane counts of its runs for metrics and reports."""
