"""The studies of `attnkit probe`, one a module."""
