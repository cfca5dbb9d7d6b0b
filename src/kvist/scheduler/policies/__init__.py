"""One file per policy: a pure function from a read-only view and a token budget to grants."""
