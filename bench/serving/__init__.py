"""The HTTP server: throughput, and attacks."""
