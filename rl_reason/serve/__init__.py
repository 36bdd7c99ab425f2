"""The policy behind HTTP: continuous batching, and the routes of OpenAI."""
