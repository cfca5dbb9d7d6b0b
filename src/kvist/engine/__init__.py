"""The step loop over scheduler and executor, without a clock."""
