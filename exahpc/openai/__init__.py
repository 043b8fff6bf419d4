"""The OpenAI HTTP API as pure functions: bodies in, response bytes out. No clock, no socket, no random numbers."""
