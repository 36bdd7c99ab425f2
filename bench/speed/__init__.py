"""Time of one device: updates, decoding, compilation."""
