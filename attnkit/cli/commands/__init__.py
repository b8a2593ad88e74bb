"""One module a command: it parses, calls one function and draws what comes back."""
