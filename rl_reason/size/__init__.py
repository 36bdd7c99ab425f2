"""Does it fit? Bytes per device of a config, by formula and by compiling."""
