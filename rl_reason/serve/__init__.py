"""An HTTP server of the policy: continuous batching, and the API of OpenAI."""
