"""The update: packing, log-probs, loss, optimizer step and certificate."""
