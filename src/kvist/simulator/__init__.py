"""The engine under a virtual clock: real scheduler, real cache, and an executor that only says how long steps take."""
