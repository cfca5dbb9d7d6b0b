"""One file per policy: a pure function from a read-only view to the estimate of the chosen replica."""
