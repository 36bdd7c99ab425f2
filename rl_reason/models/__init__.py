"""The decoder, its attention, and the critic, as functions of a pytree."""
