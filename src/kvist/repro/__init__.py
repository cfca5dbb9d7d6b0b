"""One file per paper: its effect, measured on this engine, beside the published figure."""
