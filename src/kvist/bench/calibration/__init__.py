"""Fits the cost model to measured points, and predicts points."""
