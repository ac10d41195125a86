"""Attention with any weighting, without T×T: one public operation and the implementations behind it."""
