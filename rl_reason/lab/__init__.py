"""What uses whole runs: ablations, sweeps, rounds, samples, sizes."""
