"""What uses whole runs: ablations, sweeps, samples, sizes."""
