"""The pure core: arrays in, arrays out; no model, no loop."""
