"""What the OpenAI relay is made of (S17): the request's body, the client's leases, the servers, and the stream that passes through."""
