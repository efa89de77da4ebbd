"""Counters of a lane's runs for metrics and reports."""
