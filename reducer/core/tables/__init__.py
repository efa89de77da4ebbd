"""Tables: state that the workers of a job share and this lane updates (PROTOCOL.md, section 17)."""
