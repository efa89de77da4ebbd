"""What the shell hands to a lane and gets from it: events, outputs, settings, frames."""
