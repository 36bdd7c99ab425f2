"""Many devices and less memory: meshes, LoRA, int8; no algorithm."""
